//! The clocks.

use super::*;
use tower::{Service, service_fn};

#[tokio::test(start_paused = true)]
async fn a_wall_clock_that_is_set_moves_no_other_clock() {
    let ahead = Arc::new(Mutex::new(Duration::ZERO));
    let set = ahead.clone();
    let wall = move || SystemTime::UNIX_EPOCH + *set.lock().unwrap();
    let clock = Clock::with_wall(WallClock::new(wall));
    clock.observe(1_000_000, Duration::ZERO);
    for (seconds, passed) in [(3600, 0), (5, 60), (7200, 0)] {
        let before = clock.elapsed();
        tokio::time::advance(Duration::from_secs(passed)).await;
        *ahead.lock().unwrap() = Duration::from_secs(seconds);
        assert_eq!(clock.wall_ms(), seconds as i64 * 1000);
        assert_eq!(clock.elapsed(), before + passed as i64 * 1000);
        assert_eq!(clock.server(), Some(1_000_000 + clock.elapsed()));
    }
}

/// Whether the wall clock is behind, right or ahead.
#[tokio::test(start_paused = true)]
async fn the_latest_time_is_the_servers_and_goes_on_while_the_machine_sleeps() {
    for wrong in [-7_200, 0, 7_200] {
        let seconds = Arc::new(Mutex::new(1_000_000 + wrong));
        let read = seconds.clone();
        let wall =
            move || SystemTime::UNIX_EPOCH + Duration::from_secs(*read.lock().unwrap() as u64);
        let clock = Clock::with_wall(WallClock::new(wall));
        assert_eq!(clock.latest(), (1_000_000 + wrong) * 1000);
        let pass = async |awake: u64, asleep: i64| {
            tokio::time::advance(Duration::from_secs(awake)).await;
            *seconds.lock().unwrap() += awake as i64 + asleep;
        };
        clock.observe(1_000_000_000, Duration::ZERO);
        assert_eq!(clock.latest(), 1_000_000_000, "{wrong}");
        pass(60, 0).await;
        assert_eq!(clock.latest(), 1_000_060_000, "{wrong}");
        pass(0, 3_600).await;
        for now in [1_003_660_000, 1_003_665_000, 1_003_670_000] {
            assert_eq!(clock.latest(), now, "{wrong}");
            clock.observe(now, Duration::ZERO);
            assert_eq!(clock.latest(), now, "{wrong}");
            pass(5, 0).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_servers_time_is_that_of_its_responses_to_a_second() {
    let clock = Clock::default();
    assert_eq!(clock.server(), None);
    let answer = async |_: http::Request<()>| {
        let answer = http::Response::builder().header(DATE, "Sat, 21 Nov 2026 22:01:28 GMT");
        answer.body(())
    };
    let mut service = Dated::new(service_fn(answer), clock.clone());
    service.call(http::Request::new(())).await.unwrap();
    let date = "2026-11-21T22:01:28Z".parse::<jiff::Timestamp>().unwrap().as_millisecond();
    let seen = clock.server().unwrap();
    assert!((date..date + 1_000).contains(&seen), "{seen}");
    // A delayed response does not set the clock back.
    tokio::time::advance(Duration::from_secs(1)).await;
    clock.observe(date + 1_000, Duration::ZERO);
    clock.observe(date - 5_000, Duration::ZERO);
    assert!(clock.server().unwrap() > seen);
    clock.observe(date + 1_900, Duration::ZERO);
    assert!(clock.server().unwrap() >= date + 1_900);
}

/// The time that a clock gives after responses, each some seconds after the one before with a date that is
/// so many seconds ahead.
async fn ahead_after(responses: &[(u64, i64)]) -> i64 {
    let clock = Clock::default();
    for &(later, ahead) in responses {
        tokio::time::advance(Duration::from_secs(later)).await;
        clock.observe(clock.elapsed() + ahead * 1000, Duration::ZERO);
    }
    (clock.server().unwrap() - clock.elapsed()) / 1000
}

#[tokio::test(start_paused = true)]
async fn a_time_that_leaps_ahead_counts_when_a_later_response_has_it_too() {
    assert_eq!(ahead_after(&[(0, 0), (5, 0), (5, 30)]).await, 0);
    assert_eq!(ahead_after(&[(0, 0), (5, 0), (5, 30), (0, 30)]).await, 0, "at the same time");
    assert_eq!(ahead_after(&[(0, 0), (5, 0), (5, 30), (1, 30)]).await, 30);
    // What is known is no older than the clock that it is added to.
    assert_eq!(ahead_after(&[(0, 0), (5, 0), (3_600, 30)]).await, 0);
    // One of several servers is ahead, and they answer in turn.
    let in_turn = [(0, 0), (5, 0), (5, 30), (5, 0), (5, 30), (5, 0), (5, 30)];
    assert_eq!(ahead_after(&in_turn).await, 0);
    // Of two that are ahead and differ, the earlier.
    assert_eq!(ahead_after(&[(0, 0), (5, 0), (5, 30), (5, 60)]).await, 30);
    assert_eq!(ahead_after(&[(0, 0), (5, 0), (5, 603), (5, 600), (5, 603)]).await, 600);
    assert_eq!(ahead_after(&[(0, 0), (5, 0), (5, 60), (5, 30), (5, 30)]).await, 30);
}

#[tokio::test(start_paused = true)]
async fn a_first_time_that_no_other_response_has_gives_way_to_an_earlier_one() {
    assert_eq!(ahead_after(&[(0, 30), (1, 0)]).await, 0);
    // Once another has had it, one that was delayed does not set the clock back.
    assert_eq!(ahead_after(&[(0, 30), (1, 30), (1, 0)]).await, 30);
}

/// It is older than it seems by as long as it took. A checkpoint that is dated by it would seem older, too.
#[tokio::test(start_paused = true)]
async fn a_slow_response_does_not_set_the_clock_back() {
    let clock = Clock::default();
    for (took, date, known) in [
        (20, "Sat, 21 Nov 2026 22:01:28 GMT", 0),
        (0, "Sat, 21 Nov 2026 22:01:30 GMT", 2_000),
        (120, "Sat, 21 Nov 2026 22:01:31 GMT", 122_000),
        (0, "Sat, 21 Nov 2026 22:03:31 GMT", 123_000),
    ] {
        let answer = move |_: http::Request<()>| async move {
            tokio::time::sleep(Duration::from_secs(took)).await;
            http::Response::builder().header(DATE, date).body(())
        };
        let mut service = Dated::new(service_fn(answer), clock.clone());
        service.call(http::Request::new(())).await.unwrap();
        assert_eq!(clock.server(), Some(1_795_298_488_000 + known), "{date}");
    }
}

fn millis(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Responses on a slow way are late, but none is of a time to come.
#[tokio::test(start_paused = true)]
async fn slow_responses_correct_a_first_one_that_was_slower() {
    let clock = Clock::default();
    clock.observe(clock.elapsed() - 20_000, millis(20_000));
    assert_eq!(clock.server(), Some(clock.elapsed() - 20_000));
    clock.observe(clock.elapsed() - 1_000, millis(1_200));
    assert_eq!(clock.server(), Some(clock.elapsed() - 1_000));
    // It may be of then or of now.
    assert_eq!(clock.server_at_most(), Some(clock.elapsed() + 1_000));
    // A quick one that is right corrects it at once.
    let clock = Clock::default();
    clock.observe(clock.elapsed() - 20_000, millis(20_000));
    clock.observe(clock.elapsed(), millis(0));
    assert_eq!(clock.server(), Some(clock.elapsed()));
}

/// What a slow first response leaves open, the next ones close.
#[tokio::test(start_paused = true)]
async fn a_time_that_leaps_ahead_is_one_after_a_slow_first_response_too() {
    let clock = Clock::default();
    clock.observe(clock.elapsed(), millis(20_000));
    clock.observe(clock.elapsed() - 50, millis(10));
    assert_eq!(clock.server_at_most(), Some(clock.elapsed() + 2_000));
    tokio::time::advance(Duration::from_secs(5)).await;
    clock.observe(clock.elapsed() + 18_000, millis(10));
    assert_eq!(clock.server(), Some(clock.elapsed()));
}

/// What a slow response leaves open confirms nothing.
#[tokio::test(start_paused = true)]
async fn a_time_within_what_a_slow_response_left_open_gives_way() {
    let clock = Clock::default();
    clock.observe(clock.elapsed(), millis(20_000));
    tokio::time::advance(Duration::from_secs(5)).await;
    clock.observe(clock.elapsed() + 18_000, millis(10));
    tokio::time::advance(Duration::from_secs(1)).await;
    clock.observe(clock.elapsed(), millis(10));
    assert_eq!(clock.server(), Some(clock.elapsed()));
}

/// The others agree with what is known, though none of them is better.
#[tokio::test(start_paused = true)]
async fn one_server_that_is_behind_does_not_set_a_confirmed_time_back() {
    for behind in [10, 1_200] {
        let clock = Clock::default();
        clock.observe(clock.elapsed(), millis(0));
        tokio::time::advance(millis(500)).await;
        for second in 0..300 {
            clock.observe(clock.elapsed() - 100, millis(10));
            tokio::time::advance(millis(600)).await;
            if second > 58 {
                clock.observe(clock.elapsed() - 60_000, millis(behind));
            }
            tokio::time::advance(millis(400)).await;
            let off = clock.elapsed() - clock.server().unwrap();
            assert!((0..=100).contains(&off), "{second}: {off}");
        }
    }
}

/// What most responses say is believed, whoever was confirmed first.
#[tokio::test(start_paused = true)]
async fn one_response_in_thirty_does_not_hold_a_time_that_the_others_contradict() {
    // One server is ahead; or the clock was set back, and a slow response may be of before.
    for (first, rare, slow) in [(30_000, 30_000, 10), (0, -5_000, 4_500)] {
        let clock = Clock::default();
        for _ in 0..2 {
            clock.observe(clock.elapsed() + first, millis(0));
            tokio::time::advance(millis(1_200)).await;
        }
        for second in 0..120 {
            tokio::time::advance(millis(1_000)).await;
            let (ahead, took) = match second % 30 {
                29 => (rare, millis(slow)),
                _ => (rare.min(0), millis(10)),
            };
            clock.observe(clock.elapsed() + ahead, took);
        }
        assert_eq!(clock.server(), Some(clock.elapsed() + rare.min(0)), "{first}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_is_set_back_is_believed_after_a_minute_though_all_responses_are_slow() {
    let clock = Clock::default();
    for ahead in [0, 0] {
        clock.observe(clock.elapsed() + ahead, millis(0));
        tokio::time::advance(Duration::from_secs(2)).await;
    }
    for (seconds, back) in [(1, 0), (60, 60_000)] {
        tokio::time::advance(Duration::from_secs(seconds)).await;
        clock.observe(clock.elapsed() - 60_000, millis(1_100));
        assert_eq!(clock.server(), Some(clock.elapsed() - back), "{seconds}");
    }
}

/// One server is ahead and quick, the other is right and slow.
#[tokio::test(start_paused = true)]
async fn a_slow_response_contradicts_a_time_that_leaps_ahead() {
    let clock = Clock::default();
    clock.observe(clock.elapsed(), millis(0));
    for _ in 0..10 {
        tokio::time::advance(Duration::from_secs(1)).await;
        clock.observe(clock.elapsed() + 60_000, millis(0));
        clock.observe(clock.elapsed() - 1_100, millis(1_100));
        assert_eq!(clock.server(), Some(clock.elapsed()));
    }
}

#[tokio::test]
async fn an_error_of_the_server_or_of_a_proxy_says_no_time() {
    let clock = Clock::default();
    for (status, known) in [(502, false), (500, false), (404, true)] {
        let answer = move |_: http::Request<()>| {
            let date = "Sat, 21 Nov 2026 22:01:28 GMT";
            let answer = http::Response::builder().status(status).header(DATE, date);
            std::future::ready(answer.body(()))
        };
        let mut service = Dated::new(service_fn(answer), clock.clone());
        service.call(http::Request::new(())).await.unwrap();
        assert_eq!(clock.server().is_some(), known, "{status}");
    }
}
