//! Lists and watches objects for ever, and tells when what had failed works again.

use crate::kube_error::status;
use crate::watch::{Progress, ResettableBackoff};
use futures::stream::BoxStream;
use futures::{Stream, StreamExt, stream};
use kube::Api;
use kube::core::{DynamicObject, Status};
use kube::runtime::watcher::{self, Event};
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// A watch that has not failed for so long is one that was accepted. Longer than connecting may take.
const WORKS_AFTER: Duration = Duration::from_secs(12);

/// What happens to a watch.
#[expect(clippy::large_enum_variant, reason = "almost all are events")]
#[derive(Debug)]
pub enum Seen {
    /// An event.
    Event(Event<DynamicObject>),
    /// It failed, and is tried again.
    Failed(watcher::Error),
    /// What had failed works again, though nothing has changed.
    Works,
}

/// A watch that does not end.
pub fn watched(
    api: Api<DynamicObject>,
    config: watcher::Config,
) -> impl Stream<Item = Seen> + Send + 'static {
    let make = move || watcher::watcher(api.clone(), config.clone()).boxed();
    stream::unfold(Watching::new(make), async |mut watching| {
        let seen = watching.next().await?;
        Some((seen, watching))
    })
}

type Events = BoxStream<'static, watcher::Result<Event<DynamicObject>>>;

struct Watching<M> {
    make: M,
    events: Events,
    backoff: ResettableBackoff,
    progress: Progress,
    wait: Option<Duration>,
    has_failed: bool,
    is_listing: bool,
}

impl<M: Fn() -> Events> Watching<M> {
    fn new(make: M) -> Self {
        let (backoff, progress) = ResettableBackoff::new();
        let events = make();
        Self { make, events, backoff, progress, wait: None, has_failed: false, is_listing: false }
    }

    async fn next(&mut self) -> Option<Seen> {
        if let Some(wait) = self.wait.take() {
            sleep(wait).await;
        }
        let next = match self.has_failed && !self.is_listing {
            // A watch that is accepted, and in which nothing changes, has no event.
            true => match timeout(WORKS_AFTER, self.events.next()).await {
                Ok(next) => next,
                Err(_) => {
                    self.worked();
                    return Some(Seen::Works);
                }
            },
            false => self.events.next().await,
        };
        let event = match next? {
            Ok(event) => event,
            Err(error) => {
                self.has_failed = true;
                self.wait = self.backoff.next();
                // kube's watcher would continue with the resource version that it had. One that is too old, or too large
                // since the server's clock was set back, is refused for ever, and a refusal can be of a server that has
                // not started yet: what changed meanwhile is listed.
                if status(&error).is_some_and(is_to_list_again) {
                    self.events = (self.make)();
                }
                return Some(Seen::Failed(error));
            }
        };
        match event {
            Event::Init => self.is_listing = true,
            Event::InitDone => {
                self.is_listing = false;
                self.worked();
            }
            Event::InitApply(_) | Event::Apply(_) | Event::Delete(_) => self.worked(),
        }
        Some(Seen::Event(event))
    }

    fn worked(&mut self) {
        self.has_failed = false;
        self.progress.made();
    }
}

/// Whether what a watch is refused with is not over as long as it continues.
fn is_to_list_again(status: &Status) -> bool {
    match status.code {
        401 | 403..=405 | 410 => true,
        // As client-go has it.
        504 => status.message.contains("Too large resource version"),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn failed(code: u16) -> watcher::Result<Event<DynamicObject>> {
        failed_with(code, "")
    }

    fn failed_with(code: u16, message: &str) -> watcher::Result<Event<DynamicObject>> {
        let status = Status { code, message: message.to_owned(), ..Status::default() };
        Err(watcher::Error::WatchStartFailed(kube::Error::Api(Box::new(status))))
    }

    /// A watch that lists, fails with this status as often as it is asked, and what it is like after some events.
    async fn after(code: u16, message: &'static str) -> (usize, Vec<Seen>) {
        let made = Arc::new(AtomicUsize::new(0));
        let count = made.clone();
        let make = move || {
            count.fetch_add(1, Ordering::Relaxed);
            let listed = stream::iter([Ok(Event::Init), Ok(Event::InitDone)]);
            listed.chain(stream::repeat_with(move || failed_with(code, message))).boxed()
        };
        let mut watching = Watching::new(make);
        let mut seen = Vec::new();
        for _ in 0..6 {
            seen.extend(watching.next().await);
        }
        (made.load(Ordering::Relaxed), seen)
    }

    #[tokio::test(start_paused = true)]
    async fn an_expired_version_and_a_refusal_are_followed_by_a_list() {
        let too_large = "Too large resource version: 9, current: 7";
        for (code, message) in
            [(401, ""), (403, ""), (404, ""), (405, ""), (410, ""), (504, too_large)]
        {
            let (made, seen) = after(code, message).await;
            assert_eq!(made, 3, "{code}: {seen:?}");
        }
        for code in [503, 504] {
            let (made, seen) = after(code, "").await;
            assert_eq!(made, 1, "{code}: {seen:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_in_which_nothing_changes_works_again_after_a_failure() {
        let make = || {
            let events = [Ok(Event::Init), Ok(Event::InitDone), failed(503)];
            stream::iter(events).chain(stream::pending()).boxed()
        };
        let mut watching = Watching::new(make);
        for _ in 0..3 {
            watching.next().await;
        }
        assert!(matches!(watching.next().await, Some(Seen::Works)));
        let silent = timeout(Duration::from_secs(3_600), watching.next()).await;
        assert!(silent.is_err(), "it is said once");
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_without_an_answer_does_not_work() {
        let make = || stream::iter([failed(503), Ok(Event::Init)]).chain(stream::pending()).boxed();
        let mut watching = Watching::new(make);
        for _ in 0..2 {
            watching.next().await;
        }
        assert!(timeout(Duration::from_secs(3_600), watching.next()).await.is_err());
    }
}
