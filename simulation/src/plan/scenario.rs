//! Faults, hands and loads that matter only together, and in this order: what drew them one by one would wait for
//! years.

use super::{Event, Fault, Hand, LEADER, MINUTE, Millis, SECOND, WORKLOADS, Written};
use fastrand::Rng;

/// The workloads whose policies allow little at a time.
const WITH_POLICIES: [usize; 2] = [1, 3];

/// One of the scenarios: events, and how much later each happens.
pub fn scenario(rng: &mut Rng) -> Vec<(Millis, Event)> {
    let mut events = Events { rng: rng.fork(), all: Vec::new() };
    const SCENARIOS: [fn(&mut Events); 19] = [
        Events::all_die_while_policies_count,
        Events::two_leaders_die_while_policies_count,
        Events::the_leader_dies_after_its_write,
        Events::leadership_goes_there_and_back,
        Events::made_anew_while_statuses_are_slow,
        Events::hands_while_metrics_are_slow,
        Events::edited_in_mid_decision,
        Events::made_anew_in_mid_decision,
        Events::made_anew_within_a_window,
        Events::frozen_shortly_while_metrics_are_slow,
        Events::deleted_while_watches_are_away,
        Events::hands_while_watches_are_silent,
        Events::a_hand_and_then_another_leader,
        Events::metrics_fail_at_zero,
        Events::other_writers_while_a_change_is_due,
        Events::a_second_autoscaler,
        Events::another_executor_for_a_while,
        Events::switched_off_and_on,
        Events::the_lease_is_taken_while_a_change_is_due,
    ];
    SCENARIOS[events.rng.usize(..SCENARIOS.len())](&mut events);
    events.all
}

struct Events {
    rng: Rng,
    all: Vec<(Millis, Event)>,
}

impl Events {
    /// A time between two numbers of seconds.
    fn between(&mut self, from: Millis, to: Millis) -> Millis {
        self.rng.i64(from * SECOND..to * SECOND)
    }

    fn of(&mut self, workloads: &[usize]) -> usize {
        workloads[self.rng.usize(..workloads.len())]
    }

    fn any(&mut self) -> usize {
        self.rng.usize(..WORKLOADS)
    }

    fn fault(&mut self, at: Millis, fault: Fault) {
        self.all.push((at, Event::Fault(fault)));
    }

    fn hand(&mut self, at: Millis, workload: usize, hand: Hand) {
        self.all.push((at, Event::Hand { workload, hand }));
    }

    fn load(&mut self, at: Millis, workload: usize, pods: f64) {
        self.all.push((at, Event::Load { workload, pods }));
    }

    /// A load for which most workloads have to be scaled up.
    fn high_load(&mut self, at: Millis, workload: usize) {
        let pods = f64::from(self.rng.u32(60..=120)) / 10.0;
        self.load(at, workload, pods);
    }

    fn all_die_while_policies_count(&mut self) {
        let workload = self.of(&WITH_POLICIES);
        self.high_load(0, workload);
        if self.rng.bool() {
            let (latency, time) = (self.between(5, 12), self.between(60, 200));
            self.fault(2 * SECOND, Fault::PrometheusSlow { latency, time });
        }
        let (at, down) = (self.between(20, 110), self.between(1, 20));
        if self.rng.bool() {
            // The one after it has just begun to lead.
            let down = self.between(60, 100);
            self.fault(at, Fault::Crash { replica: LEADER, down });
        }
        let after = at + self.between(17, 45);
        self.fault(after, Fault::CrashAll { down });
    }

    /// The one after the leader dies with its first checkpoint, which it writes while its first evaluations wait.
    fn two_leaders_die_while_policies_count(&mut self) {
        let workload = 3;
        self.load(0, workload, 12.0);
        let (latency, time) = (self.between(7, 12), self.between(300, 400));
        self.fault(2 * SECOND, Fault::PrometheusSlow { latency, time });
        let (at, down) = (self.between(50, 130), self.between(40, 100));
        self.fault(at, Fault::Crash { replica: LEADER, down });
        self.fault(at + 5 * SECOND, Fault::CrashAfter(Written::Checkpoint));
    }

    fn the_leader_dies_after_its_write(&mut self) {
        if self.rng.bool() {
            let workload = self.any();
            self.high_load(0, workload);
            let kinds = [Written::Scale, Written::Scale, Written::Status, Written::Checkpoint];
            let written = kinds[self.rng.usize(..kinds.len())];
            return self.fault(SECOND, Fault::CrashAfter(written));
        }
        let workload = self.of(&[2, 4]);
        self.load(0, workload, 0.0);
        self.fault(SECOND, Fault::CrashAfter(Written::ScaleToZero));
        self.high_load(12 * MINUTE, workload);
    }

    fn leadership_goes_there_and_back(&mut self) {
        if self.rng.bool() {
            return self.leadership_goes_there_and_back_at_zero();
        }
        let workload = self.of(&[0, 3, 3]);
        let mut at = 0;
        for _ in 0..self.rng.u8(3..8) {
            self.fault(at, Fault::LeaseCleared);
            let pods = f64::from(self.rng.u32(5..=120)) / 10.0;
            self.load(at, workload, pods);
            at += self.between(4, 40);
        }
    }

    /// Again and again, while a workload is scaled to zero.
    fn leadership_goes_there_and_back_at_zero(&mut self) {
        // Theirs are the windows of scale-downs: a minute, and the default. From one replica it is one step to zero.
        let (workload, window) = if self.rng.bool() { (2, MINUTE) } else { (4, 5 * MINUTE) };
        self.load(0, workload, 0.8);
        let idle = 7 * MINUTE;
        self.load(idle, workload, 0.0);
        let (mut at, end) = (idle + window - 10 * SECOND, idle + window + 50 * SECOND);
        while at < end {
            self.fault(at, Fault::LeaseCleared);
            at += self.between(4, 14);
        }
        let woken = end + self.between(0, 60);
        self.high_load(woken, workload);
    }

    fn made_anew_while_statuses_are_slow(&mut self) {
        let workload = self.any();
        self.high_load(0, workload);
        let (latency, time) = (self.between(4, 14), self.between(40, 90));
        self.fault(0, Fault::ApiSlow { replica: LEADER, latency, time });
        for _ in 0..3 {
            let (at, away) = (self.between(8, 60), self.between(0, 2));
            self.hand(at, workload, Hand::Recreate(away));
        }
    }

    fn hands_while_metrics_are_slow(&mut self) {
        let workload = self.any();
        self.high_load(0, workload);
        let (latency, time) = (self.between(3, 9), self.between(120, 240));
        self.fault(0, Fault::PrometheusSlow { latency, time });
        for _ in 0..3 {
            let (at, away) = (self.between(15, 110), self.between(0, 1));
            let hand = match self.rng.u8(0..4) {
                0 => Hand::Recreate(away),
                1 => Hand::Pause(MINUTE),
                _ => Hand::Bounds { min: self.rng.i32(0..=2), max: self.rng.i32(-4..=3) },
            };
            self.hand(at, workload, hand);
        }
    }

    fn edited_in_mid_decision(&mut self) {
        let workload = self.of(&[0, 2, 4]);
        self.load(0, workload, 1.0);
        let at = self.between(400, 500);
        let (latency, time) = (self.between(5, 10), self.between(60, 120));
        self.fault(at, Fault::PrometheusSlow { latency, time });
        self.high_load(at, workload);
        for _ in 0..2 {
            let edited = at + self.between(5, 60);
            let bounds = Hand::Bounds { min: 0, max: self.rng.i32(-10..=-4) };
            self.hand(edited, workload, bounds);
            let again = edited + self.between(10, 30);
            self.hand(again, workload, Hand::Bounds { min: 0, max: 0 });
        }
    }

    fn made_anew_in_mid_decision(&mut self) {
        let workload = self.of(&WITH_POLICIES);
        self.load(0, workload, 1.0);
        let at = self.between(400, 500);
        self.high_load(at, workload);
        let (latency, time) = (self.between(5, 10), self.between(60, 90));
        self.fault(at + 20 * SECOND, Fault::PrometheusSlow { latency, time });
        for _ in 0..3 {
            let (made, away) = (at + self.between(30, 80), self.between(0, 1));
            self.hand(made, workload, Hand::Recreate(away));
        }
        // Nothing else happens until it is due.
        self.high_load(at + 2 * MINUTE, workload);
        self.high_load(at + 5 * MINUTE, workload);
    }

    fn made_anew_within_a_window(&mut self) {
        let workload = self.any();
        self.high_load(0, workload);
        let at = self.between(180, 300);
        self.load(at, workload, 0.5);
        let (made, away) = (at + self.between(20, 100), self.rng.i64(0..20));
        self.hand(made, workload, Hand::Recreate(away));
    }

    fn frozen_shortly_while_metrics_are_slow(&mut self) {
        let (latency, time) = (self.between(3, 5), self.between(120, 180));
        self.fault(0, Fault::PrometheusSlow { latency, time });
        let (at, frozen) = (self.between(5, 20), self.between(2, 6));
        self.hand(at, 0, Hand::Freeze(frozen));
    }

    fn deleted_while_watches_are_away(&mut self) {
        let workload = self.any();
        let time = self.between(10, 60);
        self.fault(0, Fault::WatchExpired { replica: LEADER, time });
        let at = self.rng.i64(0..time);
        let away = if self.rng.bool() { self.between(0, 10) } else { self.between(480, 840) };
        self.hand(at, workload, Hand::Recreate(away));
        let again = self.between(20, 60);
        self.high_load(again, workload);
        self.load(6 * MINUTE, workload, 1.0);
    }

    fn hands_while_watches_are_silent(&mut self) {
        let (workload, time) = (self.any(), self.between(60, 150));
        self.high_load(0, workload);
        self.fault(2 * SECOND, Fault::WatchSilent { replica: LEADER, time });
        for _ in 0..2 {
            let (at, replicas) = (self.between(4, 60), self.rng.i32(2..=12));
            self.hand(at, workload, Hand::Scale(replicas));
        }
    }

    fn a_hand_and_then_another_leader(&mut self) {
        // Long after the replica that is going to lead took it for one of another writer.
        let (workload, replicas) = (3, self.rng.i32(3..=6));
        self.load(0, workload, 1.0);
        let at = self.between(200, 400);
        self.hand(at, workload, Hand::Scale(replicas));
        let (next, time) = (at + self.between(210, 420), self.between(20, 40));
        self.fault(next, Fault::LoseApi { replica: LEADER, time });
        self.high_load(next, workload);
    }

    fn metrics_fail_at_zero(&mut self) {
        // The one with a fallback, which half of the seeds scale to zero.
        let workload = 4;
        self.load(0, workload, 0.0);
        let (at, time) = (self.between(420, 600), self.between(90, 400));
        self.fault(at, Fault::PrometheusAway { time });
    }

    fn other_writers_while_a_change_is_due(&mut self) {
        let (workload, time) = (self.any(), self.between(240, 400));
        self.fault(0, Fault::Busy { workload, time });
        self.load(0, workload, 1.0);
        let at = self.between(10, 60);
        self.high_load(at, workload);
    }

    fn a_second_autoscaler(&mut self) {
        let (workload, time) = (self.of(&[0, 4]), self.between(120, 400));
        self.load(0, workload, 1.5);
        let at = self.between(360, 500);
        self.hand(at, workload, Hand::Second(time));
        let load = at + self.between(5, 60);
        self.high_load(load, workload);
    }

    fn another_executor_for_a_while(&mut self) {
        let (workload, time) = (self.of(&[0, 1, 2]), self.between(40, 300));
        let paused = self.rng.bool();
        self.hand(0, workload, Hand::NativeHpa { time, paused });
        self.high_load(time - SECOND, workload);
    }

    fn switched_off_and_on(&mut self) {
        let workload = self.any();
        self.hand(0, workload, Hand::Scale(0));
        let at = self.between(180, 600);
        self.hand(at, workload, Hand::Scale(1));
    }

    fn the_lease_is_taken_while_a_change_is_due(&mut self) {
        let workload = self.any();
        self.fault(0, Fault::LeaseTaken);
        self.high_load(0, workload);
    }
}
