//! Superblocks as they are read when a replica starts.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mainstay_codec::Superblock;
use mainstay_codec::superblock::SUPERBLOCK_BYTES;
use mainstay_fuzz::{bounded, mend_block};

fn decode(block: &[u8]) {
    if let Ok(found) = bounded(block.len(), || Superblock::decode(block)) {
        assert_eq!(found.encode(), block);
    }
}

fuzz_target!(|data: &[u8]| {
    decode(data);
    // A short input is the front of a block whose rest is zero.
    let mut block = data.to_vec();
    block.resize(SUPERBLOCK_BYTES, 0);
    mend_block(&mut block, SUPERBLOCK_BYTES - 4);
    decode(&block);
});
