// SPDX-License-Identifier: Apache-2.0

//! The crontab plugin brings a custom resource from one version to the other, and
//! checks what its schema cannot: v1 has a cron expression, v2 has its five fields.
use wasmplane::*;

/// The fields of a cron expression, with their ranges.
const FIELDS: [(&str, u32, u32); 5] = [("minute", 0, 59), ("hour", 0, 23), ("day", 1, 31), ("month", 1, 12), ("weekday", 0, 7)];

fn plugin() -> Plugin {
    let ours = |h: Hook<_>| h.rule(&[], &["example.wasmplane.dev"], &["crontabs"]);
    Plugin::new("crontab", "1.0.0")
        .convert(ours(Hook::new(convert as Decide)).fields(&["object.spec.cron", "object.spec.schedule", "desiredAPIVersion"]))
        .validate_custom(ours(Hook::new(validate as Decide)).fields(&["object.spec.cron", "object.spec.schedule"]))
}

type Decide = fn(&Input, &mut Decision);

fn convert(input: &Input, out: &mut Decision) {
    let (cron, schedule) = (input.at(0), input.at(1));
    if input.at(2).str().ends_with("/v2") && cron.exists() {
        let parts: Vec<&str> = cron.str().split_whitespace().collect();
        if parts.len() != FIELDS.len() {
            return out.deny_field("spec.cron", &format!("{:?} has {} fields instead of 5", cron.str(), parts.len()));
        }
        out.remove("/spec/cron");
        out.add("/spec/schedule", Json::object([0, 1, 2, 3, 4].map(|i| (FIELDS[i].0, parts[i].into()))));
    } else if schedule.exists() {
        let parts = FIELDS.map(|(name, _, _)| field(&schedule, name));
        out.remove("/spec/schedule");
        out.add("/spec/cron", parts.join(" "));
    }
}

/// A field of a v2 schedule; one that is left out is any.
fn field<'a>(schedule: &Value<'a>, name: &str) -> &'a str {
    match schedule.get(name).str() {
        "" => "*",
        text => text,
    }
}

fn validate(input: &Input, out: &mut Decision) {
    let (cron, schedule) = (input.at(0), input.at(1));
    if cron.exists() {
        let parts: Vec<&str> = cron.str().split_whitespace().collect();
        if parts.len() != FIELDS.len() {
            return out.cause("spec.cron", &format!("5 fields were expected, there are {}", parts.len()));
        }
        for (part, (name, low, high)) in parts.iter().zip(FIELDS) {
            if let Err(problem) = check(part, low, high) {
                out.cause("spec.cron", &format!("{}: {}", name, problem));
            }
        }
    }
    if schedule.exists() {
        for (name, low, high) in FIELDS {
            if let Err(problem) = check(field(&schedule, name), low, high) {
                out.cause(&format!("spec.schedule.{}", name), &problem);
            }
        }
    }
}

/// Checks a field: items between commas, each "*", a number or a range, with a step or without.
fn check(text: &str, low: u32, high: u32) -> Result<(), String> {
    for item in text.split(',') {
        let (range, step) = item.split_once('/').unwrap_or((item, "1"));
        if !matches!(step.parse::<u32>(), Ok(n) if n > 0) {
            return Err(format!("{:?} is no step", step));
        }
        if range == "*" {
            continue;
        }
        let (from, to) = range.split_once('-').unwrap_or((range, range));
        for end in [from, to] {
            match end.parse::<u32>() {
                Ok(n) if n >= low && n <= high => {}
                Ok(n) => return Err(format!("{} is not from {} to {}", n, low, high)),
                Err(_) => return Err(format!("{:?} is no number", end)),
            }
        }
    }
    Ok(())
}

export!(plugin);
