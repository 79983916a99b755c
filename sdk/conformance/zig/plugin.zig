// SPDX-License-Identifier: Apache-2.0

//! The conformance guest in Zig: it does what the guests in other languages do.
const std = @import("std");
const wp = @import("wasmplane");

var settings: wp.Value = .absent;

fn configure() ?[]const u8 {
    const refuse = settings.get("refuse");
    return if (refuse.exists()) refuse.str() else null;
}

fn mutate(in: wp.Document, out: *wp.Decision) void {
    if (in.get("whole").exists()) return out.setObject(.{ .kind = "Pod", .was = in.get("whole") });
    const key = settings.get("key").str();
    out.add("/echo", in.root);
    out.add(wp.print("/metadata/labels/{s}", .{wp.token(key)}), wp.json(settings));
    out.replace("/spec/replicas", in.get("spec.replicas").int() + 1);
    out.remove("/spec/paused");
    out.warn("careful \"{s}\"\n", .{"now"});
    out.audit("key", "{s}", .{key});
}

const Named = wp.Input(&.{ "object.metadata.name", "object.metadata.labels", "operation" });

fn validate(in: Named, out: *wp.Decision) void {
    if (in.get("operation").eql("CONNECT")) return wp.fail("cannot {s}", .{"tell"});
    if (in.get("operation").eql("DELETE")) {
        out.deny("in use", .{});
        out.reason("Conflict");
    }
    if (!in.get("operation").eql("CREATE")) return;
    out.denyField("metadata.name", "not {s}", .{in.get("object.metadata.name").str()});
    out.code(422);
}

fn convert(in: wp.Input(&.{ "object.spec.hostPort", "desiredAPIVersion" }), out: *wp.Decision) void {
    if (!in.get("object.spec.hostPort").exists()) return out.deny("no hostPort", .{});
    out.move("/spec/hostPort", "/spec/address");
    out.add("/spec/as", in.get("desiredAPIVersion"));
}

fn validateCustom(in: wp.Input(&.{"object.spec.port"}), out: *wp.Decision) void {
    if (in.get("object.spec.port").int() <= 9) return;
    out.cause("spec.port", "too \"{s}\"", .{"high"});
    out.cause("spec.name", "missing", .{});
}

fn authorize(in: wp.Input(&.{ "user", "resourceAttributes.namespace" })) wp.Verdict {
    const user = in.get("user");
    if (user.eql("root")) return wp.allow("root may", .{});
    if (in.get("resourceAttributes.namespace").eql("closed")) return wp.deny("closed to {s}", .{user.str()});
    return wp.no_opinion;
}

fn filter(in: wp.Input(&.{"node.metadata.name"})) wp.Fit {
    const name = in.get("node.metadata.name").str();
    if (std.mem.startsWith(u8, name, "bad")) return .{ .unfit = "node(s) were bad" };
    return if (std.mem.startsWith(u8, name, "worst")) .{ .never = "node(s) were worst" } else .fits;
}

fn preEnqueue(in: wp.Input(&.{"pod.metadata.labels"})) ?[]const u8 {
    const gate = in.get("pod.metadata.labels").get("gate");
    return if (gate.exists()) wp.print("waits for {s}", .{gate.str()}) else null;
}

fn rank(in: wp.Input(&.{"pod.spec.priority"})) i64 {
    return 10 * in.get("pod.spec.priority").int();
}

fn preFilter(in: wp.Input(&.{ "pod.metadata.name", "nodes" }), out: *wp.Selection) void {
    const pod = in.get("pod.metadata.name");
    if (pod.eql("none")) out.refuse("no node for {s}", .{pod.str()});
    if (pod.eql("never")) out.never("never runs", .{});
    if (pod.eql("skip")) out.skip();
    if (pod.eql("state")) out.keep(.{ .zone = "a" });
    if (pod.eql("narrow")) out.only(in.get("nodes").at(0).str());
    if (pod.eql("nowhere")) out.nowhere();
}

fn postFilter(in: wp.Input(&.{ "pod.metadata.name", "failed[*].node" }), out: *wp.Nomination) void {
    if (in.get("pod.metadata.name").eql("owner")) {
        out.reclaim("a", &.{ .{ .resource = "milliCPU", .amount = 64000 }, .{ .resource = "example.com/gpu", .amount = 8 } });
        return out.reclaimBelow("b \"c\"", -100);
    }
    if (!in.get("pod.metadata.name").eql("urgent")) return out.explain("nothing to evict", .{});
    out.nominate(in.get("failed[*].node").at(0).str());
    out.evict("default", "victim", "u1");
}

fn preScore(in: wp.Input(&.{"nodes"}), out: *wp.Preparation) void {
    const n = in.get("nodes").len();
    if (n == 1) out.skip() else out.keep(n);
}

fn normalize(in: wp.Input(&.{ "state", "scores" }), scores: []i64) void {
    for (scores) |*s| s.* *= in.get("state").int();
}

const On = wp.Input(&.{"nodeName"});

fn reserve(in: On) ?[]const u8 {
    return if (in.get("nodeName").eql("full")) "node full is full" else null;
}

fn told(in: On) void {
    if (in.get("nodeName").eql("broken")) wp.fail("it broke", .{});
}

fn permit(in: wp.Input(&.{ "nodeName", "waitedSeconds" })) wp.Permission {
    if (in.get("nodeName").eql("hold") and in.get("waitedSeconds").float() < 5) return .{ .wait = .{ .seconds = 2.5, .reason = "hold on" } };
    return if (in.get("nodeName").eql("no")) .{ .reject = "no" } else .proceed;
}

fn preBind(in: On) ?[]const u8 {
    return if (in.get("nodeName").eql("unready")) "not ready" else null;
}

fn bind(in: On, out: *wp.Binding) void {
    const node = in.get("nodeName");
    if (node.eql("plain")) out.bind();
    if (node.eql("noted")) out.annotate("example.com/by", "me \"{s}\"", .{"x"});
    if (node.eql("refused")) out.refuse("not there", .{});
}

fn rate(in: wp.Input(&.{"pods"})) i64 {
    const pods = in.get("pods").int();
    return switch (pods) {
        7 => @intCast(wp.askJSON("test.echo", .{ .n = 3000 }).get("text").str().len / 100),
        8 => if (wp.ask("test.none", "") == .failed) 99 else 24,
        else => 3 * pods,
    };
}

const Pod = extern struct {
    cpu: i64,
    pub const columns = .{ .cpu = wp.int("requests.milliCPU") };
};

fn allocatable() wp.Column {
    return wp.int("allocatable.pods");
}

const Node = extern struct {
    pods: i64,
    most: i64,
    pub const columns = .{ .pods = wp.int("pods"), .most = allocatable };
};

fn judge(pod: *const Pod, node: *const Node) wp.Judgement {
    const room = node.most - node.pods;
    if (room <= 0) return .never(1);
    return if (pod.cpu > room) .unfit(0) else .fits(room);
}

fn plan(in: wp.Document, out: *wp.Plan) void {
    const name = in.get("name").str();
    if (in.get("primary").isNull()) return out.delete("v1", "Service", in.get("namespace").str(), name);
    if (std.mem.eql(u8, name, "db")) {
        out.patch(.{ .api_version = "apps/v1", .kind = "Deployment", .name = "db", .subresource = "scale" }, .{
            .{ .op = "test", .path = "/spec/replicas", .value = 3 },
            .{ .op = "replace", .path = "/spec/replicas", .value = 0 },
        });
        return out.deleteTarget(.{ .api_version = "v1", .kind = "Service", .name = "old", .uid = "u-1", .resourceVersion = "7", .propagationPolicy = "Foreground" });
    }
    if (std.mem.eql(u8, name, "broken")) return out.fail("broken \"{s}\"", .{name});
    out.apply(.{ .apiVersion = "v1", .kind = "Service", .metadata = .{ .name = name }, .spec = in.get("primary.spec") });
    out.status(.{ .seen = true });
    out.condition("Ready", "True", "Made", "made it");
    out.event("Normal", "Made", "made {s}", .{name});
    out.requeue(30);
}

fn admit(in: wp.Input(&.{"pod.spec.hostNetwork"})) ?wp.Refusal {
    return if (in.get("pod.spec.hostNetwork").isTrue()) .{ .reason = "HostNetwork", .message = "no" } else null;
}

comptime {
    wp.plugin(.{
        .name = "conformance",
        .version = "1.2.3",
        .settings = &settings,
        .settings_schema = "{\"required\": [\"key\"]}",
        .configure = configure,
        .groups = wp.Groups{ .of = "pod.metadata.namespace", .names = &.{ .{ "red", "a" }, .{ "crimson", "a" } }, .other = "b \"c\"" },
        .mutate = wp.admission(mutate, &.{.{ .operations = &.{"CREATE"}, .groups = &.{""}, .versions = &.{"v1"}, .resources = &.{"pods"} }}),
        .validate = wp.with(wp.admission(validate, &.{}), .{
            .side_effects = .NoneOnDryRun,
            .alternatives = &.{.{ .alias = "@size", .places = &.{ .{ "Deployment", "spec.replicas" }, .{ "*", "spec.size" } } }},
        }),
        .convert = wp.admission(convert, &.{.{ .groups = &.{"example.com"}, .resources = &.{"endpoints"} }}),
        .validate_custom = wp.admission(validateCustom, &.{}),
        .authorize = wp.with(authorize, .{ .pure = true }),
        .pre_enqueue = wp.with(preEnqueue, .{ .events = &.{.podChanged} }),
        .queue_sort = rank,
        .pre_filter = preFilter,
        .filter = wp.with(filter, .{ .events = &.{ .nodeAdded, .podRemoved } }),
        .post_filter = wp.with(postFilter, .{ .pure = true }),
        .pre_score = preScore,
        .normalize = normalize,
        .reserve = reserve,
        .unreserve = told,
        .permit = permit,
        .pre_bind = preBind,
        .bind = bind,
        .post_bind = told,
        .score = rate,
        .table = wp.table(judge, &.{ "full", "never" }),
        .reconcile = wp.reconciler(
            plan,
            .{ .group = "apps", .resource = "deployments", .kind = "Deployment", .selector = "app=web" },
            &.{.{ .resource = "services", .kind = "Service" }},
        ),
        .node_admission = admit,
    });
}
