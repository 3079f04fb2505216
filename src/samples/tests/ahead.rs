//! Results that clients of the API read are asked for ahead of their expiry.

use super::super::coalesce::{Coalescer, SendQuery};
use super::super::flight::TableResult;
use super::super::table::Table;
use super::super::{Caller, Reader};
use super::coalescer::{Sent, failure, query};
use crate::prometheus::Error;
use crate::promql::shape::ShapedQuery;
use crate::supervise::Spawner;
use futures::FutureExt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::{Instant, sleep};

const MAX_AGE: Duration = Duration::from_secs(1);
const TICK: Duration = Duration::from_millis(1);

/// A Prometheus whose only series has the time at which the query was sent, and what it was asked.
struct Server {
    coalescer: Arc<Coalescer>,
    sent: Sent,
    begun: Instant,
    fails: Arc<AtomicBool>,
    /// The most queries in flight at the same time.
    most: Arc<AtomicUsize>,
    /// The number of its series.
    series: Arc<AtomicUsize>,
}

impl Server {
    fn new(takes: Duration) -> Self {
        let (sent, begun, fails) = (Sent::default(), Instant::now(), Arc::<AtomicBool>::default());
        let (most, in_flight) = (Arc::<AtomicUsize>::default(), Arc::new(Mutex::new(0_usize)));
        let (seen, failing, counted) = (sent.clone(), fails.clone(), most.clone());
        let series = Arc::new(AtomicUsize::new(1));
        let of_response = series.clone();
        let send: SendQuery = Arc::new(move |query, _| {
            seen.lock().unwrap().push(query);
            let (at, fails) = (begun.elapsed().as_millis(), failing.load(Ordering::Relaxed));
            let (in_flight, counted) = (in_flight.clone(), counted.clone());
            let count = of_response.load(Ordering::Relaxed);
            async move {
                *in_flight.lock().unwrap() += 1;
                counted.fetch_max(*in_flight.lock().unwrap(), Ordering::Relaxed);
                sleep(takes).await;
                *in_flight.lock().unwrap() -= 1;
                match fails {
                    true => failure(Error::Overloaded(MAX_AGE)),
                    false => {
                        let one =
                            |n| format!(r#"{{"metric":{{"pod":"{n:0200}"}},"value":[1,"{at}"]}}"#);
                        let all = (0..count).map(one).collect::<Vec<_>>().join(",");
                        let body =
                            format!(r#"{{"data":{{"resultType":"vector","result":[{all}]}}}}"#);
                        Ok(Arc::new(Table::read(body.as_bytes()).unwrap()))
                    }
                }
            }
            .boxed()
        });
        let coalescer = Arc::new(Coalescer::new(MAX_AGE, send, Spawner::unowned()));
        Self { coalescer, sent, begun, fails, most, series }
    }

    async fn read(&self, app: usize, reader: Reader) -> TableResult {
        self.read_as(Caller::of("shop").read_by(reader), app).await
    }

    async fn read_as(&self, caller: Caller, app: usize) -> TableResult {
        self.coalescer.get(&ShapedQuery::of(&query(app)), &caller).await
    }

    fn age(&self, table: &Table) -> Duration {
        self.begun.elapsed() - Duration::from_millis(table.value(0) as u64)
    }

    fn count(&self) -> usize {
        self.sent.lock().unwrap().len()
    }

    /// A client that reads the metrics of these apps every millisecond for a time. Returns how many of its reads
    /// did not get a result at once.
    async fn read_for(&self, time: Duration, apps: &[usize]) -> usize {
        let (until, mut waits) = (Instant::now() + time, 0);
        while Instant::now() < until {
            for app in apps {
                match self.read(*app, Reader::Client).now_or_never() {
                    Some(Ok(table)) => assert!(self.age(&table) <= MAX_AGE),
                    _ => waits += 1,
                }
            }
            sleep(TICK).await;
        }
        waits
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_keeps_reading_waits_once_and_gets_nothing_that_is_too_old() {
    // One query, which is sent by itself, and several, which are batched.
    for apps in [&[0][..], &[0, 1, 2]] {
        let server = Server::new(Duration::from_millis(40));
        server.read_for(Duration::from_millis(50), apps).await;
        assert_eq!(server.read_for(10 * MAX_AGE, apps).await, 0);
        // Each lasts 0.918 s: it takes 41 ms, and is repeated twice that before it expires.
        assert_eq!(server.count(), 11, "{:?}", server.sent);
        assert_eq!(server.most.load(Ordering::Relaxed), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_asked_for_that_nobody_reads_any_more() {
    let server = Server::new(Duration::from_millis(40));
    server.read_for(3 * MAX_AGE, &[0, 1, 2]).await;
    assert!(server.sent.lock().unwrap().last().unwrap().contains("a0"));
    server.read_for(3 * MAX_AGE, &[1, 2]).await;
    assert!(!server.sent.lock().unwrap().last().unwrap().contains("a0"));
    let count = server.count();
    sleep(60 * MAX_AGE).await;
    assert_eq!(server.count(), count);
}

/// Others may have large results, or be read by decisions alone: a client's small one is no reason to ask for them.
#[tokio::test(start_paused = true)]
async fn what_only_decisions_read_is_not_asked_for_with_what_a_client_reads() {
    let server = Server::new(Duration::from_millis(40));
    server.read(1, Reader::Decision).await.unwrap();
    server.read_for(MAX_AGE / 2, &[0]).await;
    // It is read shortly before it expires, as what a client reads is.
    server.read(1, Reader::Decision).await.unwrap();
    server.read_for(MAX_AGE, &[0]).await;
    let of_decision =
        server.sent.lock().unwrap().iter().filter(|query| query.contains("a1")).count();
    assert_eq!(of_decision, 1, "{:?}", server.sent);
}

#[tokio::test(start_paused = true)]
async fn a_read_now_and_then_and_a_decision_ask_once() {
    let server = Server::new(Duration::from_millis(40));
    for read in 1..=5 {
        server.read(0, Reader::Client).await.unwrap();
        sleep(15 * MAX_AGE).await;
        assert_eq!(server.count(), read);
    }
    let until = Instant::now() + 5 * MAX_AGE;
    while Instant::now() < until {
        server.read(0, Reader::Decision).await.unwrap();
        sleep(TICK).await;
    }
    // Each lasts a second after it was begun.
    assert_eq!(server.count(), 5 + 5);
}

#[tokio::test(start_paused = true)]
async fn while_prometheus_fails_a_result_is_read_as_long_as_it_may_be_and_few_are_asked_for() {
    let server = Server::new(Duration::from_millis(40));
    server.read_for(Duration::from_millis(100), &[0]).await;
    server.fails.store(true, Ordering::Relaxed);
    let (until, mut last) = (Instant::now() + 20 * MAX_AGE, Duration::ZERO);
    while Instant::now() < until {
        if let Some(Ok(table)) = server.read(0, Reader::Client).now_or_never() {
            last = server.age(&table);
            assert!(last <= MAX_AGE);
        }
        sleep(TICK).await;
    }
    assert!(last >= MAX_AGE - 2 * TICK, "{last:?}");
    // The backoff is that of any query: 1, 2, 4 and 8 seconds.
    assert!(server.count() <= 6, "{:?}", server.sent);
    server.fails.store(false, Ordering::Relaxed);
    server.read_for(10 * MAX_AGE, &[0]).await;
    assert_eq!(server.read_for(5 * MAX_AGE, &[0]).await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_slow_prometheus_is_asked_one_at_a_time_and_at_most_twice_as_often() {
    let server = Server::new(Duration::from_millis(700));
    server.read_for(20 * MAX_AGE, &[0]).await;
    assert_eq!(server.most.load(Ordering::Relaxed), 1);
    assert!(server.count() <= 30, "{:?}", server.count());
}

#[tokio::test(start_paused = true)]
async fn a_result_that_memory_would_have_to_hold_twice_is_asked_for_when_it_expires() {
    // 1.2 MB, of a user's own query and of a rule's.
    for (caller, is_ahead) in [(Caller::user("shop"), false), (Caller::of("shop"), true)] {
        let server = Server::new(Duration::from_millis(40));
        server.series.store(5_000, Ordering::Relaxed);
        let caller = caller.read_by(Reader::Client);
        let mut waits = 0;
        for _ in 0..300 {
            waits += usize::from(server.read_as(caller.clone(), 0).now_or_never().is_none());
            sleep(10 * TICK).await;
        }
        // The first of all waits, for four or five reads.
        assert_eq!(waits <= 5, is_ahead, "{waits}");
    }
}
