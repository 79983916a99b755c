// SPDX-License-Identifier: Apache-2.0

//! A plugin of the worlds of sdk/wit: it validates, judges nodes and reconciles.
//! The bindings are made by wit-bindgen.

#[allow(warnings)]
mod team;

use team::wasmplane::plugin::types::Decision;
use team::Guest;

const MANIFEST: &str = r#"{"abi": 1, "name": "team", "version": "1.0.0", "hooks": [
  {"op": 2, "point": "admission.validate", "fields": ["object.metadata.labels.owner"],
   "match": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}]},
  {"op": 6, "point": "scheduling.table",
   "columns": [{"path": "allocatable.milliCPU", "type": "int"}, {"path": "requested.milliCPU", "type": "int"}],
   "pod": [{"path": "requests.milliCPU", "type": "int"}], "reasons": ["node(s) were too full"]},
  {"op": 7, "point": "reconcile", "fields": ["name", "primary.metadata.uid"],
   "primary": {"group": "", "version": "v1", "resource": "namespaces", "kind": "Namespace"},
   "owned": [{"group": "", "version": "v1", "resource": "configmaps", "kind": "ConfigMap"}]}]}"#;

struct Team;

impl Guest for Team {
    fn describe() -> String {
        MANIFEST.into()
    }

    fn validate(document: String) -> Result<Decision, String> {
        // The document has nothing but the field that the hook names: {"object":{"metadata":{"labels":{"owner":"shop"}}}}.
        let allowed = document.contains(r#""owner":"#) && !document.contains(r#""owner":"""#);
        let told = |text: &str| if allowed { None } else { Some(text.into()) };
        Ok(Decision {
            allowed,
            message: told("name an owner"),
            field: told("metadata.labels.owner"),
            reason: None,
            code: None,
            patch: None,
            warnings: vec![],
            annotations: vec![],
        })
    }

    fn table(pod: Vec<i64>, columns: Vec<Vec<i64>>) -> Result<Vec<u8>, String> {
        let judge = |(free, used): (&i64, &i64)| match used + pod[0] > *free {
            true => 0,
            false => (101 - 100 * used / (*free).max(1)) as u8,
        };
        Ok(columns[0].iter().zip(&columns[1]).map(judge).collect())
    }

    fn reconcile(document: String) -> Result<Option<String>, String> {
        // {"name":"shop","primary":{"metadata":{"uid":"..."}}}, or no primary where it is gone. Names need no escapes.
        let name = match document.split(r#""name":""#).nth(1).and_then(|rest| rest.split('"').next()) {
            Some(name) if document.contains(r#""primary":{"#) => name,
            _ => return Ok(None),
        };
        Ok(Some(format!(
            r#"{{"apply": [{{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {{"name": "team", "namespace": "{name}"}}, "data": {{"team": "{name}"}}}}]}}"#
        )))
    }
}

team::export!(Team with_types_in team);
