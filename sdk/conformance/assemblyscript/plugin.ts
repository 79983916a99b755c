// The conformance guest in AssemblyScript: it does what the guests in other languages do.
import {
  Plugin, Input, Value, Decision, Verdict, Plan, Obj, Refusal, Row, Judgement,
  allow, deny, noOpinion, ask, token, rule, watch, int, cell, fits, unfit, never,
} from "wasmplane";
export { describe, alloc, call, reserve } from "wasmplane";

let settings: Value = Value.absent;

function configure(s: Value): string | null {
  settings = s;
  return s.get("refuse").exists ? s.get("refuse").text : null;
}

function mutate(input: Input, out: Decision): void {
  const key = settings.get("key").text;
  out.add("/echo", input.root);
  out.add("/metadata/labels/" + token(key), settings.toString());
  out.replace("/spec/replicas", input.get("spec.replicas").int + 1);
  out.remove("/spec/paused");
  out.warn('careful "now"\n');
  out.audit("key", key);
}

function validate(input: Input, out: Decision): void {
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
  return input.at(0).text.startsWith("bad") ? "node(s) were bad" : "";
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
  .mutate(mutate, [], [rule(["CREATE"], [""], ["pods"], ["v1"])])
  .validate(validate, ["object.metadata.name", "object.metadata.labels", "operation"])
  .convert(convert, ["object.spec.hostPort", "desiredAPIVersion"], [rule([], ["example.com"], ["endpoints"])])
  .validateCustom(validateCustom, ["object.spec.port"])
  .authorize(authorize, ["user", "resourceAttributes.namespace"])
  .filter(filter, ["node.metadata.name"])
  .score(rate, ["pods"])
  .table(judge, [int("pods"), int("allocatable.pods")], [int("requests.milliCPU")], ["full", "never"])
  .reconcile(plan, watch("apps", "v1", "deployments", "Deployment", "app=web"), [watch("", "v1", "services", "Service")])
  .nodeAdmission(admit, ["pod.spec.hostNetwork"]);
