//! A run follows from its seed alone: another process repeats it bit for bit.

use plimsoll_simulation::plan::DAY;
use plimsoll_simulation::run::{Report, Settings};
use std::process::Command;

/// The report of a run in a process of its own, as JSON.
fn report(seed: u64) -> String {
    // Half an hour, with many faults: without optimizations a day takes minutes.
    let settings =
        Settings { seed, length: DAY / 48, faults_per_hour: 24.0, left_out: Default::default() };
    let settings = serde_json::to_string(&settings).unwrap();
    let ended = Command::new(env!("CARGO_BIN_EXE_simulate")).args(["--run", &settings]).output();
    let ended = ended.unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    String::from_utf8(ended.stdout).unwrap()
}

#[test]
fn a_seed_is_repeated_bit_for_bit_and_another_is_another_run() {
    let (one, again, other) = std::thread::scope(|scope| {
        let runs = [7, 7, 8].map(|seed| scope.spawn(move || report(seed)));
        let [one, again, other] = runs.map(|run| run.join().unwrap());
        (one, again, other)
    });
    assert_eq!(one, again);
    let digest = |report: &str| serde_json::from_str::<Report>(report).unwrap().digest;
    assert_ne!(digest(&one), digest(&other));
}
