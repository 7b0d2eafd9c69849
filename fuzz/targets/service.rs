//! Service files.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mainstay_ha::ServiceSpec;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match ServiceSpec::parse(text) {
        Ok(spec) => {
            // The agent keeps it as JSON. Reading it back must give the same specification, still
            // valid.
            let json = serde_json::to_string(&spec).expect("a specification is data");
            let again: ServiceSpec = serde_json::from_str(&json).expect("it was written by us");
            assert_eq!(again, spec);
            again.validate().expect("it was valid before");
        }
        Err(error) => assert!(!error.field.is_empty() && !error.remedy.is_empty(), "{error}"),
    }
});
