// SPDX-License-Identifier: Apache-2.0

//! The ttl-after-finished plugin deletes Jobs when they have been finished for as long as their
//! ttlSecondsAfterFinished says: what the built-in controller of that name does.
//!
//! It keeps nothing. The host says what time it is, calls again when a Job is due, and after a
//! restart shows every Job once.
use wasmplane::*;

/// The longest that the host is asked to wait, in seconds: 30 days. A TTL may be 68 years.
const LONGEST: i64 = 30 * 24 * 3600;

fn plugin() -> Plugin {
    let jobs = Watch { group: "batch", version: "v1", resource: "jobs", kind: "Job", selector: "" };
    let fields = [
        "name", "now", "primary.metadata.uid", "primary.metadata.resourceVersion", "primary.metadata.deletionTimestamp",
        "primary.spec.ttlSecondsAfterFinished", "primary.status.conditions",
    ];
    Plugin::new("ttl-after-finished", "1.0.0").reconcile(jobs, vec![], Hook::new(plan).fields(&fields))
}

fn plan(input: &Input, out: &mut Plan) -> Result<(), String> {
    let ttl = input.get("primary.spec.ttlSecondsAfterFinished");
    if !ttl.exists() || ttl.is_null() || given(&input.get("primary.metadata.deletionTimestamp")) {
        return Ok(()); // it is to stay, or goes already
    }
    let text = match finished(&input.get("primary.status.conditions")) {
        Some(text) => text,
        None => return Ok(()), // it works
    };
    // A Job without a readable time is no reason to fail: the failure policy and the breaker of a
    // plugin are for the plugin, and would hold up all other Jobs.
    let left = match (seconds(text), seconds(input.get("now").str())) {
        (Some(finished), Some(now)) => finished + ttl.int() - now,
        _ => {
            out.event("Warning", "UnknownFinishTime", &format!("the Job has finished at {:?}, which is no time: it is not deleted", text));
            return Ok(());
        }
    };
    if left > 0 {
        out.requeue(left.min(LONGEST));
        return Ok(());
    }
    // In the state that was looked at, or not at all: the TTL may have been raised a moment ago.
    out.delete_target(Target {
        api_version: "batch/v1",
        kind: "Job",
        name: input.get("name").str(),
        uid: input.get("primary.metadata.uid").str(),
        resource_version: input.get("primary.metadata.resourceVersion").str(),
        propagation: "Foreground",
        ..Target::default()
    });
    Ok(())
}

fn given(value: &Value) -> bool {
    value.exists() && !value.is_null()
}

/// When a Job has completed or failed; none while it works.
fn finished<'a>(conditions: &Value<'a>) -> Option<&'a str> {
    let mut all = conditions.items();
    let last = all.find(|c| matches!(c.get("type").str(), "Complete" | "Failed") && c.get("status").str() == "True")?;
    Some(last.get("lastTransitionTime").str())
}

/// The seconds since 1970 of a time as Kubernetes writes it: 2026-01-02T15:04:05Z.
fn seconds(text: &str) -> Option<i64> {
    let b = text.as_bytes();
    if b.len() != 20 || (b[4], b[7], b[10], b[13], b[16], b[19]) != (b'-', b'-', b'T', b':', b':', b'Z') {
        return None;
    }
    let number = |from: usize, to: usize| b[from..to].iter().try_fold(0, |n, c| c.is_ascii_digit().then(|| n * 10 + i64::from(c - b'0')));
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    // Years that begin in March end with the day that a leap year has more.
    let (y, m) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * y + y.div_euclid(4) - y.div_euclid(100) + y.div_euclid(400) + (153 * m + 2) / 5 + day - 1 - 719_468;
    Some(((days * 24 + hour) * 60 + minute) * 60 + second)
}

export!(plugin);
