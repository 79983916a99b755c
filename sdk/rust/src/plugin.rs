// SPDX-License-Identifier: Apache-2.0

//! What a plugin is made of.

use crate::abi::*;
use crate::answer::{Decision, Judgement, Plan, Verdict};
use crate::json::Json;
use crate::scheduling::{Groups, Step};
use crate::value::Input;
use alloc::{boxed::Box, string::String, vec::Vec};

/// A hook: a function and the fields that it reads. `F` is the function's type.
pub struct Hook<F> {
    pub(crate) run: F,
    pub(crate) rules: Vec<Json>,
    pub(crate) fields: Vec<&'static str>,
    more: Vec<(String, Json)>,
}

/// What a call changes besides answering, by calling host functions.
pub enum SideEffects {
    /// Nothing; in a dry run the host keeps its functions from changing anything.
    None,
    /// The hook looks at the field `dryRun` by itself, too.
    NoneOnDryRun,
    /// Dry runs that the hook matches are refused.
    Some,
}

impl<F> Hook<F> {
    /// A hook that sees everything.
    pub fn new(run: F) -> Hook<F> {
        Hook { run, rules: Vec::new(), fields: Vec::new(), more: Vec::new() }
    }

    /// Narrows an admission hook to operations, API groups and resources; an empty list matches everything.
    pub fn rule(mut self, operations: &[&str], groups: &[&str], resources: &[&str]) -> Hook<F> {
        self.rules.push(Json::object([
            ("operations", strings(operations)),
            ("apiGroups", strings(groups)),
            ("resources", strings(resources)),
        ]));
        self
    }

    /// The same, narrowed to API versions too.
    pub fn rule_of(mut self, operations: &[&str], groups: &[&str], versions: &[&str], resources: &[&str]) -> Hook<F> {
        self.rules.push(Json::object([
            ("operations", strings(operations)),
            ("apiGroups", strings(groups)),
            ("apiVersions", strings(versions)),
            ("resources", strings(resources)),
        ]));
        self
    }

    /// The hook with another form of its function.
    pub(crate) fn with<G>(self, wrap: impl FnOnce(F) -> G) -> Hook<G> {
        Hook { run: wrap(self.run), rules: self.rules, fields: self.fields, more: self.more }
    }

    fn set(mut self, key: &str, value: impl Into<Json>) -> Hook<F> {
        self.more.push((String::from(key), value.into()));
        self
    }

    /// Declares that the answer depends on the fields and the settings only, so that the host may answer the
    /// same question again by itself: for authorization, and for pre_filter, filter and post_filter, where one pod then speaks for
    /// others like it.
    pub fn pure(self) -> Hook<F> {
        self.set("pure", true)
    }

    /// Declares the side effects of an admission hook.
    pub fn side_effects(self, effects: SideEffects) -> Hook<F> {
        let name = match effects {
            SideEffects::None => "None",
            SideEffects::NoneOnDryRun => "NoneOnDryRun",
            SideEffects::Some => "Some",
        };
        self.set("sideEffects", name)
    }

    /// Names what may change the mind of a scheduling hook that refused a pod; none = any event.
    pub fn events(self, events: &[Event]) -> Hook<F> {
        let names = events.iter().map(|e| Json::from(e.name())).collect::<Vec<Json>>();
        self.set("events", names)
    }

    /// Declares aliases for places that depend on the kind of object: with
    /// `("@replicas", &[("Deployment", "spec.replicas"), ("*", "spec.size")])`, `object.@replicas` is a field.
    pub fn alternatives(self, aliases: &[(&str, &[(&str, &str)])]) -> Hook<F> {
        let places = |list: &[(&str, &str)]| Json::Object(list.iter().map(|(kind, path)| (String::from(*kind), Json::from(*path))).collect());
        self.set("alternatives", Json::Object(aliases.iter().map(|(alias, list)| (String::from(*alias), places(list))).collect()))
    }

    /// Declares the fields that the function reads; none = the whole document.
    pub fn fields(mut self, fields: &[&'static str]) -> Hook<F> {
        self.fields = fields.to_vec();
        self
    }
}

fn strings(list: &[&str]) -> Json {
    Json::Array(list.iter().map(|s| Json::from(*s)).collect())
}

/// A column of the node table, or a cell of the pod's row: a path and the type of
/// its value. `int`: an integer or a quantity, rounded up; `milli`: thousandths;
/// `string`: a number that stands for it, 0 = absent; `bool`: 1 for true.
pub struct Column {
    path: String,
    kind: &'static str,
    equals: Option<String>,
}

impl Column {
    /// An integer or a quantity.
    pub fn int(path: &str) -> Column {
        Column { path: String::from(path), kind: "int", equals: None }
    }
    /// Thousandths of a quantity.
    pub fn milli(path: &str) -> Column {
        Column { path: String::from(path), kind: "milli", equals: None }
    }
    /// The number of a string: the same for equal strings.
    pub fn string(path: &str) -> Column {
        Column { path: String::from(path), kind: "string", equals: None }
    }
    /// 1 where the value is true.
    pub fn bool(path: &str) -> Column {
        Column { path: String::from(path), kind: "bool", equals: None }
    }
    /// 1 where the value is this string.
    pub fn equals(path: &str, text: &str) -> Column {
        Column { path: String::from(path), kind: "bool", equals: Some(String::from(text)) }
    }

    fn json(&self) -> Json {
        let mut o = Json::object([("path", self.path.as_str().into()), ("type", self.kind.into())]);
        if let (Json::Object(entries), Some(e)) = (&mut o, &self.equals) {
            entries.push((String::from("equals"), e.as_str().into()));
        }
        o
    }
}

/// A node table: all nodes filtered and scored in one call.
pub struct Table {
    pub(crate) columns: Vec<Column>,
    pub(crate) pod: Vec<Column>,
    pub(crate) reasons: Vec<String>,
    events: Vec<Json>,
    pub(crate) judge: Box<JudgeAll>,
}

/// Judges rows of a width, for a pod, and appends a byte for each.
pub(crate) type JudgeAll = dyn Fn(&[i64], &[i64], usize, &mut Vec<u8>);

/// The loop over rows of a width that is known: reading a cell needs no check of its index.
fn judge_rows<F: Fn(&[i64], &[i64]) -> Judgement, const WIDTH: usize>(judge: &F, pod: &[i64], rows: &[i64], out: &mut Vec<u8>) {
    out.extend(rows.chunks_exact(WIDTH).map(|row| judge(pod, row).byte()))
}

impl Table {
    /// A table with the function that judges one row. The function becomes part of the loop over all rows.
    pub fn new<F: Fn(&[i64], &[i64]) -> Judgement + 'static>(judge: F) -> Table {
        let all = move |pod: &[i64], rows: &[i64], width: usize, out: &mut Vec<u8>| match width {
            1 => judge_rows::<F, 1>(&judge, pod, rows, out),
            2 => judge_rows::<F, 2>(&judge, pod, rows, out),
            3 => judge_rows::<F, 3>(&judge, pod, rows, out),
            4 => judge_rows::<F, 4>(&judge, pod, rows, out),
            _ => out.extend(rows.chunks_exact(width).map(|row| judge(pod, row).byte())),
        };
        Table { columns: Vec::new(), pod: Vec::new(), reasons: Vec::new(), events: Vec::new(), judge: Box::new(all) }
    }
    /// Adds a column of each node.
    pub fn column(mut self, c: Column) -> Table {
        self.columns.push(c);
        self
    }
    /// Adds a cell of the pod's row.
    pub fn pod(mut self, c: Column) -> Table {
        self.pod.push(c);
        self
    }
    /// Adds a reason that judgements refer to by index.
    pub fn reason(mut self, text: &str) -> Table {
        self.reasons.push(String::from(text));
        self
    }
    /// Names what may change its mind about a pod that it refused; none = any event.
    pub fn events(mut self, events: &[Event]) -> Table {
        self.events = events.iter().map(|e| Json::from(e.name())).collect();
        self
    }
}

/// A kind of object that a reconciler reads.
pub struct Watch {
    /// API group, "" for the core group.
    pub group: &'static str,
    /// API version.
    pub version: &'static str,
    /// Resource, in the plural.
    pub resource: &'static str,
    /// Kind.
    pub kind: &'static str,
    /// Label selector, "" = everything.
    pub selector: &'static str,
}

impl Watch {
    fn json(&self) -> Json {
        Json::object([
            ("group", self.group.into()),
            ("version", self.version.into()),
            ("resource", self.resource.into()),
            ("kind", self.kind.into()),
            ("selector", self.selector.into()),
        ])
    }
}

type Admission = Box<dyn Fn(&Input, &mut Decision)>;
type Authorizer = Box<dyn Fn(&Input) -> Verdict>;
type Reconciler = Box<dyn Fn(&Input, &mut Plan) -> Result<(), String>>;
/// The reason (a word in CamelCase, "" admits) and the message.
type NodeAdmission = Box<dyn Fn(&Input) -> (String, String)>;

/// A plugin with its hooks.
pub struct Plugin {
    name: &'static str,
    version: &'static str,
    settings: Option<fn(&Json) -> Result<(), String>>,
    settings_schema: Option<&'static str>,
    needs: Vec<&'static str>,
    groups: Option<Groups>,
    mutate: Option<Hook<Admission>>,
    validate: Option<Hook<Admission>>,
    authorize: Option<Hook<Authorizer>>,
    pub(crate) steps: Vec<Step>,
    pub(crate) table: Option<Table>,
    reconcile: Option<(Watch, Vec<Watch>, Hook<Reconciler>)>,
    node_admission: Option<Hook<NodeAdmission>>,
    convert: Option<Hook<Admission>>,
    validate_custom: Option<Hook<Admission>>,
}

impl Plugin {
    /// A plugin without hooks.
    pub fn new(name: &'static str, version: &'static str) -> Plugin {
        Plugin {
            name,
            version,
            settings: None,
            settings_schema: None,
            needs: Vec::new(),
            groups: None,
            mutate: None,
            validate: None,
            authorize: None,
            steps: Vec::new(),
            table: None,
            reconcile: None,
            node_admission: None,
            convert: None,
            validate_custom: None,
        }
    }

    /// Takes settings: the function is called with the entry's before anything
    /// else, and refuses them with an error. The plugin is described again afterwards.
    pub fn settings(mut self, f: fn(&Json) -> Result<(), String>) -> Plugin {
        self.settings = Some(f);
        self
    }
    /// Gives a JSON schema of the settings: the host holds an entry's settings against it before the function is called,
    /// and names the field that is wrong.
    pub fn settings_schema(mut self, schema: &'static str) -> Plugin {
        self.settings_schema = Some(schema);
        self
    }
    /// Names a host function that the plugin cannot do without.
    pub fn needs(mut self, function: &'static str) -> Plugin {
        self.needs.push(function);
        self
    }
    /// Tells groups of pods apart, teams or queues: hooks of a pod's cycle see what each of them has.
    pub fn groups(mut self, g: Groups) -> Plugin {
        self.groups = Some(g);
        self
    }
    /// The hook at admission.mutate.
    pub fn mutate(mut self, h: Hook<impl Fn(&Input, &mut Decision) + 'static>) -> Plugin {
        self.mutate = Some(h.with(|f| Box::new(f) as Admission));
        self
    }
    /// The hook at admission.validate.
    pub fn validate(mut self, h: Hook<impl Fn(&Input, &mut Decision) + 'static>) -> Plugin {
        self.validate = Some(h.with(|f| Box::new(f) as Admission));
        self
    }
    /// The hook at authorization. The input has the names of a SubjectAccessReview's spec.
    pub fn authorize(mut self, h: Hook<impl Fn(&Input) -> Verdict + 'static>) -> Plugin {
        self.authorize = Some(h.with(|f| Box::new(f) as Authorizer));
        self
    }
    /// The hook at scheduling.table.
    pub fn table(mut self, t: Table) -> Plugin {
        self.table = Some(t);
        self
    }
    /// The hook at reconcile, with the kind that it reconciles and those that it makes.
    pub fn reconcile(mut self, primary: Watch, owned: Vec<Watch>, h: Hook<impl Fn(&Input, &mut Plan) -> Result<(), String> + 'static>) -> Plugin {
        self.reconcile = Some((primary, owned, h.with(|f| Box::new(f) as Reconciler)));
        self
    }
    /// The hook at nodeadmission: reason ("" admits) and message.
    pub fn node_admission(mut self, h: Hook<impl Fn(&Input) -> (String, String) + 'static>) -> Plugin {
        self.node_admission = Some(h.with(|f| Box::new(f) as NodeAdmission));
        self
    }
    /// The hook at customresource.convert: it brings a custom resource (`object`) into the version that
    /// `desiredAPIVersion` names, by changes; the object has that apiVersion already. `deny` fails the conversion.
    pub fn convert(mut self, h: Hook<impl Fn(&Input, &mut Decision) + 'static>) -> Plugin {
        self.convert = Some(h.with(|f| Box::new(f) as Admission));
        self
    }
    /// The hook at customresource.validate: writes of custom resources that their schema has nothing against.
    pub fn validate_custom(mut self, h: Hook<impl Fn(&Input, &mut Decision) + 'static>) -> Plugin {
        self.validate_custom = Some(h.with(|f| Box::new(f) as Admission));
        self
    }

    pub(crate) fn describe(&self) -> Vec<u8> {
        let mut hooks = Vec::new();
        if let Some(h) = &self.mutate {
            hooks.push(hook(MUTATE, h, Vec::new()));
        }
        if let Some(h) = &self.validate {
            hooks.push(hook(VALIDATE, h, Vec::new()));
        }
        if let Some(h) = &self.authorize {
            hooks.push(hook(AUTHORIZE, h, Vec::new()));
        }
        for s in &self.steps {
            hooks.push(hook(s.op, &s.hook, Vec::new()));
        }
        if let Some(t) = &self.table {
            let mut more = alloc::vec![
                ("columns", Json::Array(t.columns.iter().map(Column::json).collect())),
                ("pod", Json::Array(t.pod.iter().map(Column::json).collect())),
                ("reasons", Json::Array(t.reasons.iter().map(|r| r.as_str().into()).collect())),
            ];
            if !t.events.is_empty() {
                more.push(("events", Json::Array(t.events.clone())));
            }
            hooks.push(hook(TABLE, &Hook::new(()), more));
        }
        if let Some((primary, owned, h)) = &self.reconcile {
            let more = alloc::vec![
                ("primary", primary.json()),
                ("owned", Json::Array(owned.iter().map(Watch::json).collect())),
            ];
            hooks.push(hook(RECONCILE, h, more));
        }
        if let Some(h) = &self.node_admission {
            hooks.push(hook(NODE_ADMISSION, h, Vec::new()));
        }
        if let Some(h) = &self.convert {
            hooks.push(hook(CONVERT, h, Vec::new()));
        }
        if let Some(h) = &self.validate_custom {
            hooks.push(hook(VALIDATE_CUSTOM, h, Vec::new()));
        }
        let mut manifest = Json::object([
            ("abi", Json::Int(1)),
            ("name", self.name.into()),
            ("version", self.version.into()),
            ("settings", self.settings.is_some().into()),
            ("hooks", Json::Array(hooks)),
            ("needs", strings(&self.needs)),
        ]);
        if let (Json::Object(entries), Some(groups)) = (&mut manifest, &self.groups) {
            entries.push((String::from("groups"), groups.json()));
        }
        let mut out = Vec::new();
        manifest.write(&mut out);
        if let Some(schema) = self.settings_schema {
            out.pop(); // the bracket, behind the schema as it is written
            out.extend_from_slice(b",\"settingsSchema\":");
            out.extend_from_slice(schema.as_bytes());
            out.push(b'}');
        }
        out
    }

    pub(crate) fn call(&self, op: i32, data: &[u8]) -> Result<Vec<u8>, String> {
        if op == SETTINGS {
            if let Some(f) = self.settings {
                return f(&crate::json::parse(data)?).map(|_| Vec::new());
            }
        }
        let decides = match op {
            MUTATE => &self.mutate,
            VALIDATE => &self.validate,
            CONVERT => &self.convert,
            VALIDATE_CUSTOM => &self.validate_custom,
            _ => &None,
        };
        if let Some(h) = decides {
            let mut d = Decision::default();
            (h.run)(&Input::new(data, &h.fields), &mut d);
            return Ok(d.encode());
        }
        match op {
            AUTHORIZE => {
                if let Some(h) = &self.authorize {
                    return Ok((h.run)(&Input::new(data, &h.fields)).encode());
                }
            }
            RECONCILE => {
                if let Some((_, _, h)) = &self.reconcile {
                    let mut p = Plan::default();
                    (h.run)(&Input::new(data, &h.fields), &mut p)?;
                    return Ok(p.encode());
                }
            }
            NODE_ADMISSION => {
                if let Some(h) = &self.node_admission {
                    let (reason, message) = (h.run)(&Input::new(data, &h.fields));
                    if reason.is_empty() {
                        return Ok(Vec::new());
                    }
                    let mut out = Vec::new();
                    Json::object([("admitted", false.into()), ("reason", reason.into()), ("message", message.into())]).write(&mut out);
                    return Ok(out);
                }
            }
            _ => {
                if let Some(s) = self.steps.iter().find(|s| s.op == op) {
                    return Ok((s.hook.run)(&Input::new(data, &s.hook.fields)));
                }
            }
        }
        Err(String::from("the plugin has no such operation"))
    }
}

fn hook<F>(op: i32, h: &Hook<F>, more: Vec<(&str, Json)>) -> Json {
    let mut entries = alloc::vec![
        (String::from("op"), Json::Int(op as i64)),
        (String::from("point"), point(op).into()),
        (String::from("encoding"), "flat".into()),
        (String::from("match"), Json::Array(h.rules.clone())),
        (String::from("fields"), strings(&h.fields)),
    ];
    entries.extend(h.more.iter().cloned());
    entries.extend(more.into_iter().map(|(k, v)| (String::from(k), v)));
    Json::Object(entries)
}
