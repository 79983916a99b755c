// SPDX-License-Identifier: Apache-2.0

//! The zone-latency plugin places a pod near a zone: near its users, or near the database
//! that it talks to. The pod says which one, and how far it may be at most; the latencies between
//! zones are in the settings, and a node's label may say what was measured from there.
use std::cell::RefCell;
use wasmplane::*;

const TO: &str = "latency.example.com/to";
const AT_MOST: &str = "latency.example.com/at-most";
const ZONE: &str = "topology.kubernetes.io/zone";
const LONGEST: f64 = 60_000.0; // a minute: what is longer is a mistake
const MOST_ZONES: usize = 64;

struct Settings {
    latencies: Vec<(String, String, f64)>, // milliseconds, in both directions
    worst: f64,                            // from there on a node is as bad as any
}

thread_local! { static SETTINGS: RefCell<Settings> = const { RefCell::new(Settings { latencies: Vec::new(), worst: 100.0 }) }; }

fn configure(s: &Json) -> Result<(), String> {
    let mut read = Settings { latencies: Vec::new(), worst: 100.0 };
    let zones = s.get("latencies");
    if *zones != Json::Null && !matches!(zones, Json::Object(_)) {
        return Err("latencies: expected zones, each with the milliseconds to others: {a: {b: 8}}".into());
    }
    if zones.entries().len() > MOST_ZONES {
        return Err(format!("latencies: found {} zones, expected {} at most", zones.entries().len(), MOST_ZONES));
    }
    for (from, others) in zones.entries() {
        if !matches!(others, Json::Object(_)) || others.entries().len() > MOST_ZONES {
            return Err(format!("latencies.{}: expected up to {} zones with milliseconds, such as {{b: 8}}", from, MOST_ZONES));
        }
        for (to, value) in others.entries() {
            let ms = number(value).filter(|ms| (0.0..=LONGEST).contains(ms));
            let ms = ms.ok_or_else(|| format!("latencies.{}.{}: found {}, expected milliseconds from 0 to {}", from, to, value, LONGEST))?;
            read.latencies.push((from.clone(), to.clone(), ms));
        }
    }
    if *s.get("worst") != Json::Null {
        read.worst = number(s.get("worst"))
            .filter(|ms| *ms > 0.0 && *ms <= LONGEST)
            .ok_or_else(|| format!("worst: found {}, expected milliseconds above 0, up to {}", s.get("worst"), LONGEST))?;
    }
    SETTINGS.with(|w| w.replace(read));
    Ok(())
}

fn number(v: &Json) -> Option<f64> {
    match v {
        Json::Int(i) => Some(*i as f64),
        Json::Float(f) => Some(*f),
        _ => None,
    }
}

/// Milliseconds, as labels and annotations have them.
fn milliseconds(text: &str) -> Option<f64> {
    text.parse::<f64>().ok().filter(|ms| (0.0..=LONGEST).contains(ms))
}

/// What a pod or a node is quoted with: no more of a value than a message should hold.
fn quoted(text: &str) -> String {
    let mut short: String = text.chars().take(40).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    format!("{:?}", short)
}

/// What the pod wants: to be near a zone, and no farther than so much.
struct Wish<'a> {
    to: &'a str,
    at_most: Option<f64>,
}

fn wish<'a>(i: &'a Input) -> Result<Option<Wish<'a>>, String> {
    let annotations = i.get("pod.metadata.annotations");
    let (to, limit) = (annotations.get(TO).str(), annotations.get(AT_MOST));
    if to.is_empty() {
        return match limit.exists() {
            true => Err(format!("annotation {}: it says nothing without {}, the zone that is meant", AT_MOST, TO)),
            false => Ok(None),
        };
    }
    if !limit.exists() {
        return Ok(Some(Wish { to, at_most: None }));
    }
    match milliseconds(limit.str()) {
        Some(ms) => Ok(Some(Wish { to, at_most: Some(ms) })),
        None => Err(format!("annotation {}: found {}, expected milliseconds from 0 to {}", AT_MOST, quoted(limit.str()), LONGEST)),
    }
}

/// How far a node is from a zone: what its label says was measured, else what the settings say of its
/// zone, and no way at all within the zone. None: nobody knows.
fn distance(i: &Input, to: &str) -> Result<Option<f64>, String> {
    let labels = i.get("node.metadata.labels");
    let measured = labels.get(&format!("latency.example.com/to-{}", to));
    if measured.exists() {
        return match milliseconds(measured.str()) {
            Some(ms) => Ok(Some(ms)),
            None => Err(format!("node(s) had a label latency.example.com/to-{} that is no number of milliseconds", to)),
        };
    }
    let zone = labels.get(ZONE).str();
    if zone == to {
        return Ok(Some(0.0));
    }
    Ok(SETTINGS.with(|s| {
        let s = s.borrow();
        let find = |from: &str, to: &str| s.latencies.iter().find(|(a, b, _)| a == from && b == to).map(|(_, _, ms)| *ms);
        find(zone, to).or_else(|| find(to, zone))
    }))
}

/// Once for each pod: what it says has to make sense, or it waits with the reason.
fn check(i: &Input, out: &mut Selection) {
    match wish(i) {
        Err(why) => out.never(&why),
        Ok(None) => out.skip(),
        Ok(Some(w)) if w.at_most.is_none() => out.skip(), // it prefers, and refuses nothing
        Ok(_) => {}
    }
}

fn filter(i: &Input) -> Fit {
    let (to, at_most) = match wish(i) {
        Ok(Some(Wish { to, at_most: Some(at_most) })) => (to, at_most),
        _ => return Fit::Fits,
    };
    match distance(i, to) {
        Err(why) => Fit::Never(why),
        Ok(None) => Fit::Never(format!("node(s) had no known latency to zone {}", quoted(to))),
        Ok(Some(ms)) if ms > at_most => Fit::Never(format!("node(s) were more than {} ms from zone {}", at_most, quoted(to))),
        Ok(_) => Fit::Fits,
    }
}

/// 100 in the zone itself, 0 from the worst latency on and where nobody knows.
fn score(i: &Input) -> i64 {
    let ms = match wish(i) {
        Ok(Some(w)) => distance(i, w.to),
        _ => return 0,
    };
    match ms {
        Ok(Some(ms)) => (100.0 * (1.0 - (ms / SETTINGS.with(|s| s.borrow().worst)).min(1.0)) + 0.5) as i64,
        _ => 0,
    }
}

fn plugin() -> Plugin {
    let both = ["pod.metadata.annotations", "node.metadata.labels"];
    Plugin::new("zone-latency", "1.0.0")
        .settings(configure)
        .pre_filter(Hook::new(check).fields(&both[..1]))
        .filter(Hook::new(filter).fields(&both))
        .score(Hook::new(score).fields(&both))
}

export!(plugin);
