//! Native HPAs that kube-controller-manager decides for: what Plimsoll would have
//! decided, beside what was.

use super::reconcile::{Observed, Round, State};
use super::run::Shared;
use crate::hpa::Outcome;
use crate::watch::Subject;

/// Writes nothing; shows what was decided beside what kube-controller-manager did.
pub fn compare(shared: &Shared, subject: &Subject, round: Round<'_>, state: &mut State) {
    let Round { context, target, decision, memory, mut status } = round;
    state.memory = memory;
    let (Ok(target), false) = (&target, decision.outcome == Outcome::Failed) else {
        tracing::debug!(%subject, error = decision.error, "could not decide beside");
        state.status = status;
        return;
    };
    let replicas = target.replicas.spec_replicas;
    let ours = match decision.outcome {
        Outcome::Rescale { to, .. } => to,
        Outcome::Hold | Outcome::Failed => replicas,
    };
    let before = state.observed.replace(Observed { replicas, wanted: ours });
    // The policies look at what really changed.
    if let Some(before) = &before
        && before.replicas != replicas
    {
        state.memory.scaled(before.replicas, replicas, context.spec, context.now);
        status.last_scale = Some(context.now);
    }
    status.desired_replicas = ours;
    state.status = status;
    let Some(record) = shared.cluster.read(|index| index.hpa(&subject.key)) else { return };
    let theirs = record.status.desired_replicas;
    // They decide in their own time, up to one period before or after.
    let agreed = theirs == ours || before.is_some_and(|before| before.wanted == theirs);
    shared.metrics.compared(&subject.key, ours, theirs, agreed);
    if agreed {
        tracing::debug!(%subject, ours, theirs, "decided as kube-controller-manager");
    } else {
        tracing::info!(%subject, ours, theirs, "decided otherwise than kube-controller-manager");
    }
}
