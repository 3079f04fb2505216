//! Why a condition is as it is, or an event was published, as one word.

use crate::api_names::api_names;

api_names! {
    /// The reason of a condition or of an event. docs/conditions.md says what each means.
    #[allow(missing_docs)]
    pub enum Reason {
        // Ready
        Ready,
        Paused,
        NotEvaluated,
        // AbleToScale
        SucceededGetScale,
        SucceededRescale,
        ReadyForNewScale,
        ScaleDownStabilized,
        ScaleUpStabilized,
        FailedGetScale,
        FailedUpdateScale,
        InvalidSpec,
        FailedWriteHPA,
        FailedDeleteHPA,
        // ScalingActive
        ValidMetricFound,
        MetricFallback,
        OnErrorHold,
        OnErrorIgnore,
        ScalingDisabled,
        InvalidSelector,
        AmbiguousSelector,
        FailedGetPodOwners,
        FailedGetPodsMetric,
        FailedGetObjectMetric,
        FailedGetExternalMetric,
        FailedGetResourceMetric,
        FailedGetContainerResourceMetric,
        InvalidMetricSourceType,
        DecisionTimedOut,
        // ScalingLimited
        DesiredWithinRange,
        TooManyReplicas,
        TooFewReplicas,
        ScaleUpLimit,
        ScaleDownLimit,
        RollingOut,
        PodsNotKnown,
        MetricsWereAway,
        // ScaledToZero
        ScalingToZero,
        ScaledToZero,
        NotScaledToZero,
        // FallbackActive
        MetricsFailed,
        // Paused, Preview, Frozen
        PausedBySpec,
        PauseIsOver,
        ModeIsActive,
        PreviewBySpec,
        FrozenByAdministrator,
        Ended,
        // MetricTypeUnknown
        NoMetadata,
        NeverFalls,
        // ConfigurationWarning
        ReplicasWrittenByOthers,
        SelectsOtherPods,
        QueryWasEmpty,
        RolloutsNotSeen,
        // Events only
        SuccessfulRescale,
        FailedRescale,
        FallbackRescale,
        FailedComputeMetricsReplicas,
        SelectorRequired,
        FailedUpdateStatus,
        ScheduleStarted,
        ScheduleEnded,
    }
}

/// A condition has it as text: another version may have written it.
impl PartialEq<Reason> for std::borrow::Cow<'_, str> {
    fn eq(&self, reason: &Reason) -> bool {
        self == reason.as_str()
    }
}
