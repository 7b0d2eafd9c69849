//! The reference page of service files is written from the table of their fields.

/// `MAINSTAY_BLESS=1` writes the page anew.
#[test]
fn the_manual_has_every_field_of_a_service_file_as_the_code_does() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/service-file.md");
    let written = mainstay_ha::reference_page();
    if std::env::var_os("MAINSTAY_BLESS").is_some() {
        std::fs::write(path, written).expect("the page can be written");
        return;
    }
    let page = std::fs::read_to_string(path).expect("the page is there");
    assert_eq!(page, written, "write it anew with MAINSTAY_BLESS=1");
}
