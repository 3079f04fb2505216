//! Every response of Prometheus is decoded or refused: no panic, and no value that is not finite.
#![no_main]

use plimsoll::prometheus::{decode_series_schemas, read_query_response};
use plimsoll::samples::Table;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let mut series = 0;
    let read = read_query_response(bytes, |sample| {
        assert!(sample.value.is_ok_and(f64::is_finite) || sample.value.is_err());
        // A series with an invalid sample counts, too: its error is reported.
        series += 1;
    });
    let table = Table::read(bytes);
    if let (Ok(_), Ok(table)) = (&read, &table) {
        assert_eq!(table.series(), series);
    }
    let _ = decode_series_schemas(bytes);
});
