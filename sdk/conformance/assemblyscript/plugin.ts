// SPDX-License-Identifier: Apache-2.0

// The conformance guest in AssemblyScript: it does what the guests in other languages do.
import {
  Plugin, Input, Value, Decision, Verdict, Plan, Patch, Target, Obj, Refusal, Row, Judgement,
  Selection, Nomination, Preparation, Permission, Binding,
  allow, deny, noOpinion, ask, fail, token, rule, watch, int, cell, fits, unfit, never,
  forGood, proceed, wait, reject,
} from "wasmplane";
export { describe, alloc, call, reserve } from "wasmplane";

let settings: Value = Value.absent;

function configure(s: Value): string | null {
  settings = s;
  return s.get("refuse").exists ? s.get("refuse").text : null;
}

function mutate(input: Input, out: Decision): void {
  if (input.get("whole").exists) {
    out.setObject(new Obj().set("kind", "Pod").set("was", input.get("whole")));
    return;
  }
  const key = settings.get("key").text;
  out.add("/echo", input.root);
  out.add("/metadata/labels/" + token(key), settings.toString());
  out.replace("/spec/replicas", input.get("spec.replicas").int + 1);
  out.remove("/spec/paused");
  out.warn('careful "now"\n');
  out.audit("key", key);
}

function validate(input: Input, out: Decision): void {
  if (input.at(2).is("CONNECT")) fail("cannot tell");
  if (input.at(2).is("DELETE")) {
    out.deny("in use");
    out.reason("Conflict");
  }
  if (!input.at(2).is("CREATE")) return;
  out.denyField("metadata.name", "not " + input.at(0).text);
  out.code(422);
}

function convert(input: Input, out: Decision): void {
  if (!input.at(0).exists) return out.deny("no hostPort");
  out.move("/spec/hostPort", "/spec/address");
  out.add("/spec/as", input.get("desiredAPIVersion"));
}

function validateCustom(input: Input, out: Decision): void {
  if (input.at(0).int <= 9) return;
  out.cause("spec.port", 'too "high"');
  out.cause("spec.name", "missing");
}

function authorize(input: Input): Verdict {
  if (input.get("user").is("root")) return allow("root may");
  if (input.get("resourceAttributes.namespace").is("closed")) return deny("closed to " + input.get("user").text);
  return noOpinion();
}

function filter(input: Input): string {
  const name = input.at(0).text;
  if (name.startsWith("worst")) return forGood("node(s) were worst");
  return input.at(0).startsWith("bad") ? "node(s) were bad" : "";
}

function preEnqueue(input: Input): string {
  const gate = input.at(0).get("gate");
  return gate.exists ? "waits for " + gate.text : "";
}

function rank(input: Input): i64 { return 10 * input.at(0).int; }

function preFilter(input: Input, out: Selection): void {
  const pod = input.at(0);
  if (pod.is("none")) out.refuse("no node for none");
  if (pod.is("never")) out.never("never runs");
  if (pod.is("skip")) out.skip();
  if (pod.is("state")) out.keep(new Obj().set("zone", "a"));
  if (pod.is("narrow")) out.only(input.at(1).at(0).text);
  if (pod.is("nowhere")) out.only("");
}

function postFilter(input: Input, out: Nomination): void {
  if (input.at(0).is("owner")) {
    out.reclaim("a", new Obj().set("milliCPU", 64000).set("scalar", new Obj().set("example.com/gpu", 8)));
    return out.reclaimBelow('b "c"', -100);
  }
  if (!input.at(0).is("urgent")) return out.explain("nothing to evict");
  out.nominate(input.at(1).at(0).text);
  out.evict("default", "victim", "u1");
}

function preScore(input: Input, out: Preparation): void {
  const n = input.at(0).length;
  if (n == 1) out.skip();
  else out.keep(n);
}

function normalize(input: Input, scores: i64[]): void {
  for (let i = 0; i < scores.length; i++) scores[i] *= input.get("state").int;
}

function reserved(input: Input): string { return input.at(0).is("full") ? "node full is full" : ""; }

function told(input: Input): void { if (input.at(0).is("broken")) fail("it broke"); }

function permit(input: Input): Permission {
  if (input.at(0).is("hold") && input.at(1).float < 5) return wait(2.5, "hold on");
  return input.at(0).is("no") ? reject("no") : proceed();
}

function preBind(input: Input): string { return input.at(0).is("unready") ? "not ready" : ""; }

function bind(input: Input, out: Binding): void {
  if (input.at(0).is("plain")) out.bind();
  if (input.at(0).is("noted")) out.annotate("example.com/by", 'me "x"');
  if (input.at(0).is("refused")) out.refuse("not there");
}

function rate(input: Input): i64 {
  const pods = input.at(0).int;
  if (pods == 7) return ask("test.echo", new Obj().set("n", 3000).toString()).json.get("text").length / 100;
  if (pods == 8 && !ask("test.none", "").ok) return 99;
  return 3 * pods;
}

function judge(pod: Row, node: Row): Judgement {
  const room = cell(node, 1) - cell(node, 0);
  if (room <= 0) return never(1);
  return cell(pod, 0) > room ? unfit(0) : fits(room);
}

function plan(input: Input, out: Plan): void {
  const name = input.get("name").text, primary = input.get("primary");
  if (primary.isNull) return out.delete("v1", "Service", input.get("namespace").text, name);
  if (name == "db") {
    out.patch(new Target("apps/v1", "Deployment", "db", "", "", "scale"), new Patch().test("/spec/replicas", 3).replace("/spec/replicas", 0));
    return out.deleteTarget(new Target("v1", "Service", "old", "", "u-1", "", "7", "Foreground"));
  }
  if (name == "broken") return out.fail('broken "' + name + '"');
  out.apply(new Obj().set("apiVersion", "v1").set("kind", "Service").set("metadata", new Obj().set("name", name)).set("spec", primary.get("spec")));
  out.status(new Obj().set("seen", true));
  out.condition("Ready", "True", "Made", "made it");
  out.event("Normal", "Made", "made " + name);
  out.requeue(30);
}

function admit(input: Input): Refusal | null {
  return input.at(0).isTrue ? new Refusal("HostNetwork", "no") : null;
}

new Plugin("conformance", "1.2.3")
  .settings(configure)
  .settingsSchema('{"required": ["key"]}')
  .groups("pod.metadata.namespace", new Obj().set("red", "a").set("crimson", "a"), 'b "c"')
  .mutate(mutate, [], [rule(["CREATE"], [""], ["pods"], ["v1"])])
  .validate(validate, ["object.metadata.name", "object.metadata.labels", "operation"]).sideEffects("NoneOnDryRun")
  .alternatives(new Obj().set("@size", new Obj().set("Deployment", "spec.replicas").set("*", "spec.size")))
  .convert(convert, ["object.spec.hostPort", "desiredAPIVersion"], [rule([], ["example.com"], ["endpoints"])])
  .validateCustom(validateCustom, ["object.spec.port"])
  .authorize(authorize, ["user", "resourceAttributes.namespace"]).pure()
  .preEnqueue(preEnqueue, ["pod.metadata.labels"]).events(["podChanged"])
  .queueSort(rank, ["pod.spec.priority"])
  .preFilter(preFilter, ["pod.metadata.name", "nodes"])
  .filter(filter, ["node.metadata.name"]).events(["nodeAdded", "podRemoved"])
  .postFilter(postFilter, ["pod.metadata.name", "failed[*].node"]).pure()
  .preScore(preScore, ["nodes"])
  .normalize(normalize, ["state"])
  .reserve(reserved, ["nodeName"])
  .unreserve(told, ["nodeName"])
  .permit(permit, ["nodeName", "waitedSeconds"])
  .preBind(preBind, ["nodeName"])
  .bind(bind, ["nodeName"])
  .postBind(told, ["nodeName"])
  .score(rate, ["pods"])
  .table(judge, [int("pods"), int("allocatable.pods")], [int("requests.milliCPU")], ["full", "never"])
  .reconcile(plan, watch("apps", "v1", "deployments", "Deployment", "app=web"), [watch("", "v1", "services", "Service")])
  .nodeAdmission(admit, ["pod.spec.hostNetwork"]);
