//! The kinds of faults.

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    PrometheusStalls,
    PrometheusSlow,
    PrometheusUnavailable,
    PrometheusNoJson,
    PrometheusTooManyRequests,
    PrometheusHalfAResponse,
    ApiSlow,
    ScaleConflicts,
    PatchesFail,
    ScaleTooManyRequests,
    ScaleAnswersLost,
    LeasesStall,
    WatchesRefused,
    DeletionsWhileWatchesExpire,
    LeaderStopped,
    LeaderCutOff,
    LeaderKilled,
    LeaderEnded,
}

/// Each kind once.
pub const DECK: [Kind; 18] = [
    Kind::PrometheusStalls,
    Kind::PrometheusSlow,
    Kind::PrometheusUnavailable,
    Kind::PrometheusNoJson,
    Kind::PrometheusTooManyRequests,
    Kind::PrometheusHalfAResponse,
    Kind::ApiSlow,
    Kind::ScaleConflicts,
    Kind::PatchesFail,
    Kind::ScaleTooManyRequests,
    Kind::ScaleAnswersLost,
    Kind::LeasesStall,
    Kind::WatchesRefused,
    Kind::DeletionsWhileWatchesExpire,
    Kind::LeaderStopped,
    Kind::LeaderCutOff,
    Kind::LeaderKilled,
    Kind::LeaderEnded,
];
