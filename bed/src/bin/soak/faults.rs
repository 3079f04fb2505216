//! The faults of the soak: one at a time, each kind once before any comes again, as a deck of cards.

use crate::kinds::{DECK, Kind};
use crate::settings::NAMES;
use crate::soak::Soak;
use bed::proxy::Fault;
use std::time::{Duration, Instant};

/// How long a leader is away for another to lead: longer than the Lease lasts.
const TAKEN_OVER: Duration = Duration::from_secs(10);
/// How long objects are deleted before the watches are told that they have expired.
const GAP: Duration = Duration::from_millis(1_500);

impl Soak<'_> {
    /// Ends a fault whose time is over, and begins another.
    pub async fn fail(&mut self) {
        if self.fault_until.is_some_and(|until| Instant::now() >= until) {
            self.heal().await;
            self.calm_until =
                Instant::now() + Duration::from_millis(self.random.below(3_000) as u64);
        }
        if self.fault_until.is_some() || Instant::now() < self.calm_until {
            return;
        }
        if self.deck.is_empty() {
            self.deck = DECK.to_vec();
        }
        let mut kind = self.deck.swap_remove(self.random.below(self.deck.len()));
        let leader = self.pair.leader();
        // Only the second replica is killed: where the first leads, the second comes to lead first.
        if matches!(kind, Kind::LeaderKilled | Kind::LeaderEnded) && leader != Some(1) {
            self.deck.push(kind);
            kind = [Kind::LeaderStopped, Kind::LeaderCutOff][self.random.below(2)];
        }
        *self.faults.entry(format!("{kind:?}")).or_default() += 1;
        let both = self.random.below(2) == 0;
        let of: Vec<usize> = (0..NAMES.len()).filter(|one| both || leader == Some(*one)).collect();
        let seconds = 1_000 + self.random.below(5_000) as u64;
        self.fault_until = Some(Instant::now() + Duration::from_millis(seconds));
        match kind {
            Kind::DeletionsWhileWatchesExpire => self.delete_in_the_gap().await,
            Kind::LeaderStopped | Kind::LeaderCutOff | Kind::LeaderKilled | Kind::LeaderEnded => {
                self.fail_leader(kind, leader.unwrap_or(0)).await;
            }
            _ => of.into_iter().for_each(|index| self.fail_proxies(kind, index)),
        }
    }

    /// Ends all faults.
    pub async fn heal(&mut self) {
        for index in 0..NAMES.len() {
            self.pair.prometheus(index).clear();
            self.pair.api(index).clear();
        }
        self.pair.go_on();
        self.pair.start_other().await;
        if let Some(index) = self.cut_off.take() {
            self.pair.disturbed(index);
        }
        self.faulty.end();
        self.fault_until = None;
    }

    async fn fail_leader(&mut self, kind: Kind, leader: usize) {
        self.fault_until = Some(Instant::now() + TAKEN_OVER);
        self.faulty.begin();
        match kind {
            Kind::LeaderStopped => self.pair.stop(leader),
            Kind::LeaderKilled => self.pair.kill_other().await,
            Kind::LeaderEnded => self.pair.end_other().await,
            _ => {
                self.pair.api(leader).stall("");
                self.cut_off = Some(leader);
            }
        }
    }

    /// What else the proxies of a replica do.
    fn fail_proxies(&mut self, kind: Kind, index: usize) {
        let (api, prometheus) = (self.pair.api(index), self.pair.prometheus(index));
        let respond = |status: u16, body: &str| Fault::Response {
            status,
            headers: vec![("retry-after", "1".to_owned())],
            body: body.to_owned(),
        };
        let refuse = |status: u16| {
            respond(
                status,
                &format!(
                    r#"{{"kind":"Status","status":"Failure","code":{status},"message":"soak"}}"#
                ),
            )
        };
        match kind {
            Kind::PrometheusStalls => return prometheus.stall(""),
            Kind::PrometheusSlow => {
                return prometheus.fail("", Fault::Slow(Duration::from_millis(1_500)));
            }
            Kind::PrometheusUnavailable => return prometheus.fail("", respond(503, "starting")),
            Kind::PrometheusNoJson => return prometheus.fail("", respond(200, "<html>")),
            Kind::PrometheusTooManyRequests => {
                return prometheus.fail("", respond(429, "slow down"));
            }
            Kind::PrometheusHalfAResponse => return prometheus.fail("", Fault::Cut),
            Kind::ApiSlow => api.fail("", Fault::Slow(Duration::from_millis(800))),
            Kind::ScaleConflicts => api.fail("/scale", refuse(409)),
            Kind::PatchesFail => api.fail("PATCH", refuse(500)),
            Kind::ScaleTooManyRequests => api.fail("/scale", refuse(429)),
            // Longer than Plimsoll waits for a response.
            Kind::ScaleAnswersLost => {
                api.fail("PUT /apis/apps", Fault::Late(Duration::from_secs(12)))
            }
            Kind::LeasesStall => api.stall("leases"),
            // Not as an expired watch is told: a refusal, after which the old one is resumed.
            Kind::WatchesRefused => {
                api.fail("watch=true", refuse(410));
                api.end_responses();
            }
            Kind::DeletionsWhileWatchesExpire
            | Kind::LeaderStopped
            | Kind::LeaderCutOff
            | Kind::LeaderKilled
            | Kind::LeaderEnded => unreachable!("they are of no proxy alone"),
        }
        self.faulty.begin();
    }

    /// The watches end and can't begin; an Autoscaler, a Deployment and a pod are deleted; then the
    /// watches are told that they have expired, as kube-apiserver does: by an event in a response of
    /// status 200. So the deletions are seen from new lists alone.
    async fn delete_in_the_gap(&mut self) {
        self.faulty.begin();
        let apis = || (0..NAMES.len()).map(|index| self.pair.api(index));
        apis().for_each(|api| {
            api.stall("watch=true");
            api.end_responses();
        });
        let living = self.living();
        for (nth, index) in living.iter().take(3).enumerate() {
            match nth {
                0 => self.remove(*index).await,
                1 => self.delete_target(*index).await,
                _ => self.delete_pod(*index).await,
            };
        }
        tokio::time::sleep(GAP).await;
        (0..NAMES.len()).for_each(|index| {
            self.pair.api(index).fail("watch=true", Fault::expired_watch());
        });
        self.fault_until = Some(Instant::now() + 2 * GAP);
    }
}
