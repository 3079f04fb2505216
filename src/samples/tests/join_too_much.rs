//! Requests of several queries that are too much at once: too long, too large or too slow, or with too little memory.

use super::super::join::Joiner;
use super::join::{Bad, TEN, ask, hits, joiner, queries, server};
use crate::prometheus::Flow;
use crate::promql::union::QUERY_LABEL;
use crate::supervise::Spawner;
use futures::future::{self, join_all};
use std::time::Duration;

#[tokio::test(start_paused = true)]
async fn a_query_that_is_small_now_and_then_is_not_joined() {
    let (joiner, seen) = joiner();
    for round in 0..6 {
        seen.lock().unwrap().bad = if round % 2 == 0 { Bad::Fine } else { Bad::Large };
        assert!(ask(&joiner, &seen, &queries(&TEN)).await.0.iter().all(Result::is_ok));
        tokio::time::advance(Duration::from_secs(15)).await;
    }
    let sent = ask(&joiner, &seen, &queries(&TEN)).await.1;
    assert_eq!(sent, 2, "the nine others share a request");
}

/// As when a proxy is restarted. It strikes all that are sent at the time.
#[tokio::test(start_paused = true)]
async fn one_failure_by_chance_makes_requests_no_smaller() {
    for (queries, requests) in [(64, 1), (300, 5)] {
        let (joiner, seen) = joiner();
        let many = hits(0..queries, "_all_bad");
        ask(&joiner, &seen, &many).await;
        seen.lock().unwrap().bad = Bad::CutFirst(requests);
        seen.lock().unwrap().delay = Duration::from_millis(5);
        assert!(ask(&joiner, &seen, &many).await.0.iter().all(Result::is_ok));
        seen.lock().unwrap().bad = Bad::Fine;
        assert_eq!(ask(&joiner, &seen, &many).await.1, requests);
    }
}

/// Each fails for longer than it takes until the next one is sent.
#[tokio::test(start_paused = true)]
async fn what_is_too_much_together_is_noticed_though_requests_overlap() {
    let (joiner, seen) = joiner();
    let many = hits(0..64, "");
    ask(&joiner, &seen, &many).await;
    (seen.lock().unwrap().longest, seen.lock().unwrap().delay) =
        ((2_000, 502), Duration::from_millis(100));
    let rounds = (0..12).map(async |round| {
        tokio::time::sleep(Duration::from_millis(80) * round).await;
        let results = many
            .iter()
            .map(|query| joiner.clone().query(query.clone(), vec![Flow::Namespace("shop".into())]));
        assert!(join_all(results).await.iter().all(Result::is_ok));
    });
    join_all(rounds).await;
    let too_long = |query: &&String| query.len() > 2_000;
    let sent = seen.lock().unwrap().queries.iter().filter(too_long).count();
    assert!(sent <= 7, "{sent}");
}

/// A stall of the server, for example.
#[tokio::test(start_paused = true)]
async fn requests_that_are_late_now_and_then_end_no_joining() {
    let (joiner, seen) = joiner();
    let many = hits(0..64, "");
    ask(&joiner, &seen, &many).await;
    let stalled = async || {
        seen.lock().unwrap().delay = Duration::from_secs(3);
        let stall = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            seen.lock().unwrap().delay = Duration::ZERO;
        };
        future::join(ask(&joiner, &seen, &many), stall).await.0.1
    };
    for _ in 0..3 {
        assert_eq!(stalled().await, 1 + 64);
        tokio::time::advance(Duration::from_secs(15)).await;
        assert_eq!(ask(&joiner, &seen, &many).await.1, 1);
        tokio::time::advance(Duration::from_secs(650)).await;
        ask(&joiner, &seen, &many).await;
    }
    // Twice within ten minutes is no chance any more: fewer share a request.
    for (sent, next) in [(1 + 64, 1), (1 + 64, 4), (4 + 64, 4), (4 + 64, 4), (4 + 64, 4)] {
        assert_eq!(stalled().await, sent);
        tokio::time::advance(Duration::from_secs(15)).await;
        assert_eq!(ask(&joiner, &seen, &many).await.1, next);
        tokio::time::advance(Duration::from_secs(15)).await;
    }
    tokio::time::advance(Duration::from_secs(301)).await;
    ask(&joiner, &seen, &many).await;
    assert_eq!(ask(&joiner, &seen, &many).await.1, 1);
}

/// Together they are too much for the server, or for a proxy: fewer are joined for a while.
#[tokio::test(start_paused = true)]
async fn what_is_too_much_together_is_sent_twice_no_more_than_now_and_then() {
    for status in [403, 414, 422, 502, 504] {
        let (joiner, seen) = joiner();
        let many = hits(0..600, "");
        ask(&joiner, &seen, &many).await;
        seen.lock().unwrap().longest = (2_000, status);
        seen.lock().unwrap().delay = Duration::from_millis(5);
        let mut sent = 0;
        for round in 0..40 {
            let (results, requests) = ask(&joiner, &seen, &many).await;
            let failures = results.iter().filter(|result| result.is_err()).count();
            assert_eq!(failures, 0, "{status}, {round}");
            sent += requests;
            tokio::time::advance(Duration::from_secs(15)).await;
        }
        // 38 of 16 queries each.
        assert!(sent <= 40 * 42, "{status}: {sent}");
    }
}

/// However few are too much.
#[tokio::test(start_paused = true)]
async fn what_is_too_much_for_a_few_queries_is_sent_no_more_than_now_and_then() {
    for status in [413, 422, 502] {
        let (joiner, seen) = joiner();
        let many = hits(0..64, "");
        ask(&joiner, &seen, &many).await;
        // About eight of them.
        seen.lock().unwrap().longest = (750, status);
        let mut sent = 0;
        for round in 0..40 {
            let (results, requests) = ask(&joiner, &seen, &many).await;
            assert!(results.iter().all(Result::is_ok), "{status}, {round}");
            sent += requests;
            tokio::time::advance(Duration::from_secs(15)).await;
        }
        // 16 of four queries each.
        assert!(sent <= 40 * 19, "{status}: {sent}");
    }
}

/// A proxy that takes no `or`, or evaluates it for long, for example.
#[tokio::test(start_paused = true)]
async fn queries_of_which_no_two_can_share_a_request_are_sent_by_themselves() {
    for (number, bad, status) in [
        (3, Bad::LateJoined, 0),
        (12, Bad::LateJoined, 0),
        (64, Bad::LateJoined, 0),
        (64, Bad::Fine, 403),
        (64, Bad::Fine, 502),
    ] {
        let (joiner, seen) = joiner();
        let many = hits(0..number, "_all_bad");
        ask(&joiner, &seen, &many).await;
        seen.lock().unwrap().bad = bad;
        if bad == Bad::Fine {
            seen.lock().unwrap().longest = (100, status);
        }
        let mut joined = 0;
        for round in 0..40 {
            let results = ask(&joiner, &seen, &many).await.0;
            assert!(results.iter().all(Result::is_ok), "{results:?}");
            let is_joined = |query: &&String| query.contains(QUERY_LABEL);
            if round >= 8 {
                joined += seen.lock().unwrap().queries.iter().filter(is_joined).count();
            }
            tokio::time::advance(Duration::from_secs(15)).await;
        }
        // In the round after each minute they try again.
        assert!(joined <= (32 / 5 + 2) * number.div_ceil(4), "{number}, {status}: {joined}");
    }
}

/// Requests in between are smaller, as long as it is believed what the slow one took, and quick.
#[tokio::test(start_paused = true)]
async fn requests_that_are_slow_as_a_whole_become_smaller() {
    for most in [10, 20, 30] {
        let (joiner, seen) = joiner();
        let many = hits(0..64, "_all");
        ask(&joiner, &seen, &many).await;
        seen.lock().unwrap().bad = Bad::SlowAbove(most);
        let mut slow = 0;
        for _ in 0..120 {
            let begun = tokio::time::Instant::now();
            assert!(ask(&joiner, &seen, &many).await.0.iter().all(Result::is_ok));
            slow += u32::from(begun.elapsed() > Duration::from_secs(1));
            tokio::time::advance(Duration::from_secs(15)).await;
        }
        // Up to three, and then none for five minutes.
        assert!(slow <= 120 * 3 / 20, "{most}: {slow}");
    }
}

/// As of a server that is scheduled late. It serves fewer queries in a request no sooner, but it can't be told from one
/// that would: requests become smaller.
#[tokio::test(start_paused = true)]
async fn requests_that_are_slow_by_chance_end_no_joining() {
    let (joiner, seen) = joiner();
    let many = hits(0..500, "_all");
    ask(&joiner, &seen, &many).await;
    seen.lock().unwrap().bad = Bad::SlowAtTimes;
    let mut sent = 0;
    for _ in 0..240 {
        let (results, requests) = ask(&joiner, &seen, &many).await;
        assert!(results.iter().all(Result::is_ok));
        sent += requests;
        tokio::time::advance(Duration::from_secs(15)).await;
    }
    // Eight in a round would do. Of a slow one, and every ten minutes, each query is measured by itself: 51 and 13 of a round.
    assert!(sent <= 240 * 250, "{sent}");
}

/// It costs those beside it: few of them, and not for ever.
#[tokio::test(start_paused = true)]
async fn a_query_that_is_late_only_among_others_is_set_apart() {
    for (bad, place, name) in [
        (Bad::LateJoined, 63, "_user"),
        (Bad::LateJoined, 63, "_each"),
        (Bad::LateJoined, 31, "_each"),
        (Bad::SlowJoined, 0, "_each"),
        (Bad::SlowJoined, 31, "_each"),
        (Bad::SlowJoined, 63, "_each"),
    ] {
        let (joiner, seen) = joiner();
        let mut many = hits(0..64, name);
        many[place].push_str("_bad");
        ask(&joiner, &seen, &many).await;
        seen.lock().unwrap().bad = bad;
        let mut sent = Vec::new();
        for _ in 0..120 {
            let (results, requests) = ask(&joiner, &seen, &many).await;
            assert!(results.iter().all(Result::is_ok));
            sent.push(requests);
            tokio::time::advance(Duration::from_secs(15)).await;
        }
        let found = if bad == Bad::LateJoined { 8 } else { 12 };
        assert!(sent[found..].iter().all(|sent| *sent <= 25), "{place}: {sent:?}");
        assert!(sent[60..].iter().all(|sent| *sent <= 8), "{place}: {sent:?}");
    }
}

/// Those beside it would share requests with fewer, and it with as many as before.
#[tokio::test(start_paused = true)]
async fn a_query_that_is_late_or_slow_now_and_then_by_itself_too_costs_few_others() {
    for (at_times, rounds, every) in [(Bad::Late, 1, 6), (Bad::Slow, 2, 4), (Bad::Slow, 2, 8)] {
        let (joiner, seen) = joiner();
        let many = [hits(0..299, "_all"), hits(299..300, "_all_bad")].concat();
        ask(&joiner, &seen, &many).await;
        let mut beside = Vec::new();
        for round in 0..60 {
            let is_late = round % every < rounds;
            seen.lock().unwrap().bad = if is_late { at_times } else { Bad::Fine };
            let results = ask(&joiner, &seen, &many).await.0;
            assert!(results[..299].iter().all(Result::is_ok));
            if is_late {
                let queries = &seen.lock().unwrap().queries;
                let with_it = queries.iter().filter(|query| query.contains("bad"));
                beside.push(with_it.map(|query| query.matches("hits_").count() - 1).sum::<usize>());
            }
            tokio::time::advance(Duration::from_secs(15)).await;
        }
        assert!(beside[1..].iter().all(|beside| *beside <= 3), "{every}: {beside:?}");
    }
}

/// Whose tables may be small.
#[tokio::test(start_paused = true)]
async fn queries_with_large_responses_do_not_keep_those_between_them_apart() {
    let (joiner, seen) = joiner();
    let both: Vec<String> = hits(0..20, "")
        .into_iter()
        .zip(hits(20..40, "_bad"))
        .flat_map(<[String; 2]>::from)
        .collect();
    seen.lock().unwrap().bad = Bad::Padded(600 << 10);
    ask(&joiner, &seen, &both).await;
    assert_eq!(ask(&joiner, &seen, &both).await.1, 20 + 1);
}

/// Which tables tell less than responses.
#[tokio::test(start_paused = true)]
async fn queries_whose_responses_are_too_large_together_share_several_requests() {
    let (joiner, seen) = joiner();
    let few = hits(0..10, "_bad");
    seen.lock().unwrap().bad = Bad::Padded(240 << 10);
    ask(&joiner, &seen, &few).await;
    for _ in 0..2 {
        let (results, sent) = ask(&joiner, &seen, &few).await;
        assert!(results.iter().all(Result::is_ok) && sent == 3, "{sent}");
    }
}

/// Their answers are charged to none of them.
#[tokio::test(start_paused = true)]
async fn a_namespace_whose_memory_is_full_spoils_no_request_of_several() {
    let (client, seen) = server();
    let joiner = Joiner::new(client.clone(), Spawner::unowned());
    let all = || {
        let names = ["a", "b", "c", "d", "e", "f"].into_iter().enumerate();
        join_all(names.map(|(n, name)| {
            let flows = vec![Flow::User(name.into())];
            joiner.clone().query(format!("hits_{n}"), flows)
        }))
    };
    all().await;
    seen.lock().unwrap().queries.clear();
    let mut taken = client.reserve(&Flow::User("a".into()));
    for bytes in [1 << 20, 1 << 10, 1] {
        while taken.grow(bytes).is_ok() {}
    }
    let results = all().await;
    assert!(results[0].is_err() && results[1..].iter().all(Result::is_ok), "{results:?}");
    assert_eq!(seen.lock().unwrap().queries.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_slow_moment_of_the_server_ends_the_joining_for_a_minute() {
    let (joiner, seen) = joiner();
    let many = hits(0..300, "");
    ask(&joiner, &seen, &many).await;
    assert_eq!(ask(&joiner, &seen, &many).await.1, 5);
    seen.lock().unwrap().delay = Duration::from_secs(3);
    ask(&joiner, &seen, &many).await;
    seen.lock().unwrap().delay = Duration::ZERO;
    tokio::time::advance(Duration::from_secs(61)).await;
    ask(&joiner, &seen, &many).await;
    let sent = ask(&joiner, &seen, &many).await.1;
    assert!(sent < 20, "{sent}");
}
