//! The settings of a replica's parts, from flags.

use crate::config::{Config, ServeFlags};
use crate::control::ControllerSettings;
use crate::hpa;
use crate::leader::ElectionSettings;
use crate::ledger::{self, DecisionLog, DecisionLogWriter, MIN_LOG_BYTES};
use crate::rules::ListingSettings;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Why a replica can't have these settings.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// Flags do not go together.
    #[error("{0}")]
    Flags(&'static str),
    /// The decision log can't be written.
    #[error(
        "--decision-log: {}: {error}; a file in a folder that is there and can be written to was expected, or -",
        path.display()
    )]
    DecisionLog {
        /// The file of the flag.
        path: PathBuf,
        /// The cause.
        error: io::Error,
    },
}

/// Checks that the flags go together, and with the configuration.
///
/// # Errors
/// If they do not; the text says which.
pub fn check(flags: &ServeFlags, config: &Config) -> Result<(), SettingsError> {
    if flags.series_max_age() < flags.metrics_relist_interval && !config.rules.custom.is_empty() {
        return Err(SettingsError::Flags(
            "--metrics-max-age must not be less than --metrics-relist-interval",
        ));
    }
    if flags.decision_log_max_bytes < MIN_LOG_BYTES {
        return Err(SettingsError::Flags(
            "--decision-log-max-bytes must be at least 8388608 (8 MiB)",
        ));
    }
    let lease = flags.leader_elect_lease_duration;
    let (renew_deadline, retry) =
        (flags.leader_elect_renew_deadline, flags.leader_elect_retry_period);
    if lease.subsec_nanos() != 0 || lease <= renew_deadline || renew_deadline < 2 * retry {
        return Err(SettingsError::Flags(
            "--leader-elect-lease-duration must be whole seconds and more than \
             --leader-elect-renew-deadline, and that at least twice \
             --leader-elect-retry-period",
        ));
    }
    Ok(())
}

/// The decision log and its writer, if there is to be one.
///
/// # Errors
/// If it can't be written.
pub fn decision_log(
    flags: &ServeFlags,
) -> Result<Option<(DecisionLog, DecisionLogWriter)>, SettingsError> {
    let Some(path) = &flags.decision_log else { return Ok(None) };
    let opened = ledger::decision_log(path, flags.decision_log_max_bytes);
    opened.map(Some).map_err(|error| SettingsError::DecisionLog { path: path.clone(), error })
}

/// The settings of the listings of series.
pub fn listings(flags: &ServeFlags) -> ListingSettings {
    ListingSettings {
        interval: flags.metrics_relist_interval,
        max_age: flags.series_max_age(),
        sample_max_age: flags.sample_max_age,
    }
}

/// The settings of the election, in which this replica has an identity of its own.
pub fn election(flags: &ServeFlags, identity: String) -> ElectionSettings {
    let namespace = flags.leader_elect_resource_namespace.as_ref();
    ElectionSettings {
        elect: flags.leader_elect,
        namespace: namespace.cloned().unwrap_or_else(|| flags.service_namespace()),
        name: flags.leader_elect_resource_name.clone(),
        identity,
        lease_duration: flags.leader_elect_lease_duration,
        renew_deadline: flags.leader_elect_renew_deadline,
        retry_period: flags.leader_elect_retry_period,
    }
}

/// The settings of the control loop.
pub fn control(flags: &ServeFlags) -> ControllerSettings {
    let seconds = |duration: Duration| i32::try_from(duration.as_secs()).unwrap_or(i32::MAX);
    let millis = |duration: Duration| i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
    ControllerSettings {
        hpa_config: hpa::ControllerConfig {
            tolerance: flags.horizontal_pod_autoscaler_tolerance,
            downscale_stabilization_seconds: seconds(
                flags.horizontal_pod_autoscaler_downscale_stabilization,
            ),
            cpu_initialization_ms: millis(
                flags.horizontal_pod_autoscaler_cpu_initialization_period,
            ),
            initial_readiness_delay_ms: millis(
                flags.horizontal_pod_autoscaler_initial_readiness_delay,
            ),
            scale_to_zero: flags.scale_to_zero,
        },
        native_hpas: flags.native_hpas,
        period: flags.horizontal_pod_autoscaler_sync_period.max(Duration::from_millis(100)),
        status_interval: flags.status_interval,
        checkpoint_interval: flags.memory_interval,
        // A query may wait in the queue, and is sent again in a smaller batch.
        decision_timeout: (flags.prometheus.prometheus_timeout * 3).max(Duration::from_secs(30)),
    }
}
