//! Pages of the version table. The first bytes choose the page and the number of versions.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mainstay_codec::versions::{VERSIONS_PAGE_BYTES, VERSIONS_PER_PAGE, decode_page, encode_page};
use mainstay_fuzz::{bounded, mend_block};
use mainstay_types::Index;

fn decode(block: &[u8], page: u32, versions: &mut [Index]) {
    if bounded(block.len(), || decode_page(block, page, versions)).is_ok() {
        let mut again = Vec::new();
        encode_page(&mut again, page, versions);
        assert_eq!(again, block);
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((&[a, b, page], block)) = data.split_first_chunk() else { return };
    let wanted = usize::from(u16::from_le_bytes([a, b])) % (VERSIONS_PER_PAGE + 2);
    let mut versions = vec![Index(0); wanted];
    decode(block, page.into(), &mut versions);
    let mut block = block.to_vec();
    block.resize(VERSIONS_PAGE_BYTES, 0);
    mend_block(&mut block, 8);
    decode(&block, page.into(), &mut versions);
});
