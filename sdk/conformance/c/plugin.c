// SPDX-License-Identifier: Apache-2.0

/* The conformance guest in C: what README.md beside this folder says, in terms of the SDK. */
#include "wasmplane.h"

static const char *key = "", *text = "";

static const char *configure(wp_value settings) {
    if (wp_exists(wp_get(settings, "refuse"))) return wp_string(wp_get(settings, "refuse"));
    key = wp_string(wp_get(settings, "key"));
    text = wp_format("%v", settings);
    return 0;
}

static void mutate(wp_input in, wp_answer *out) {
    if (wp_exists(wp_get(in, "whole"))) {
        wp_set_object(out, "{\"kind\":\"Pod\",\"was\":%v}", wp_get(in, "whole"));
        return;
    }
    wp_add(out, "/echo", "%v", in);
    wp_add(out, wp_format("/metadata/labels/%k", key), "%q", text);
    wp_replace(out, "/spec/replicas", "%D", wp_int(wp_path(in, "spec.replicas")) + 1);
    wp_remove(out, "/spec/paused");
    wp_warn(out, "careful \"%s\"\n", "now");
    wp_audit(out, "key", "%s", key);
}

static void validate(wp_input in, wp_answer *out) {
    if (wp_eq(wp_field(in, 2), "CONNECT")) wp_fail(out, "cannot tell");
    if (wp_eq(wp_field(in, 2), "DELETE")) {
        wp_deny(out, "in use");
        wp_reason(out, "Conflict");
    }
    if (!wp_eq(wp_field(in, 2), "CREATE")) return;
    wp_deny_field(out, "metadata.name", "not %t", wp_field(in, 0));
    wp_code(out, 422);
}

static void convert(wp_input in, wp_answer *out) {
    if (!wp_exists(wp_field(in, 0))) {
        wp_deny(out, "no hostPort");
        return;
    }
    wp_move(out, "/spec/hostPort", "/spec/address");
    wp_add(out, "/spec/as", "%v", wp_field(in, 1));
}

static void validate_custom(wp_input in, wp_answer *out) {
    if (wp_int(wp_field(in, 0)) <= 9) return;
    wp_cause(out, "spec.port", "too \"%s\"", "high");
    wp_cause(out, "spec.name", "missing");
}

static wp_verdict authorize(wp_input in) {
    if (wp_eq(wp_field(in, 0), "root")) return wp_allow("root may");
    if (wp_eq(wp_field(in, 1), "closed")) return wp_refuse("closed to %t", wp_field(in, 0));
    return WP_NO_OPINION;
}

static void filter(wp_input in, wp_answer *out) {
    if (wp_has_prefix(wp_field(in, 0), "bad")) wp_deny(out, "node(s) were bad");
    if (wp_has_prefix(wp_field(in, 0), "worst")) wp_deny_for_good(out, "node(s) were worst");
}

static void pre_enqueue(wp_input in, wp_answer *out) {
    wp_value gate = wp_get(wp_field(in, 0), "gate");
    if (wp_exists(gate)) wp_deny(out, "waits for %t", gate);
}

static int64_t rank(wp_input in) { return 10 * wp_int(wp_field(in, 0)); }

static void pre_filter(wp_input in, wp_answer *out) {
    wp_value pod = wp_field(in, 0);
    if (wp_eq(pod, "none")) wp_deny(out, "no node for %t", pod);
    if (wp_eq(pod, "never")) wp_deny_for_good(out, "never runs");
    if (wp_eq(pod, "skip")) wp_skip(out);
    if (wp_eq(pod, "state")) wp_keep(out, "{\"zone\":%q}", "a");
    if (wp_eq(pod, "narrow")) wp_only(out, wp_at(wp_field(in, 1), 0));
    if (wp_eq(pod, "nowhere")) wp_only(out, wp_at(wp_field(in, 1), 99));
}

static void post_filter(wp_input in, wp_answer *out) {
    if (wp_eq(wp_field(in, 0), "owner")) {
        wp_amount keep[] = {{"milliCPU", 64000}, {"example.com/gpu", 8}};
        wp_reclaim(out, "a", keep, 2);
        wp_reclaim_below(out, "b \"c\"", -100);
        return;
    }
    if (!wp_eq(wp_field(in, 0), "urgent")) {
        wp_deny(out, "nothing to evict");
        return;
    }
    wp_nominate(out, wp_string(wp_at(wp_field(in, 1), 0)));
    wp_evict(out, "default", "victim", "u1");
}

static void pre_score(wp_input in, wp_answer *out) {
    size_t n = wp_len(wp_field(in, 0));
    if (n == 1) wp_skip(out);
    else wp_keep(out, "%d", (int)n);
}

static void normalize(wp_input in, int64_t *scores, size_t count) {
    for (size_t i = 0; i < count; i++) scores[i] *= wp_int(wp_field(in, 0));
}

static void reserve(wp_input in, wp_answer *out) {
    if (wp_eq(wp_field(in, 0), "full")) wp_deny(out, "node full is full");
}

static void told(wp_input in, wp_answer *out) {
    if (wp_eq(wp_field(in, 0), "broken")) wp_fail(out, "it broke");
}

static void permit(wp_input in, wp_answer *out) {
    if (wp_eq(wp_field(in, 0), "hold") && wp_float(wp_field(in, 1)) < 5) wp_wait(out, 2.5, "hold on");
    if (wp_eq(wp_field(in, 0), "no")) wp_deny(out, "no");
}

static void pre_bind(wp_input in, wp_answer *out) {
    if (wp_eq(wp_field(in, 0), "unready")) wp_deny(out, "not ready");
}

static void bind(wp_input in, wp_answer *out) {
    if (wp_eq(wp_field(in, 0), "plain")) wp_bind(out);
    if (wp_eq(wp_field(in, 0), "noted")) wp_annotate(out, "example.com/by", "me \"%s\"", "x");
    if (wp_eq(wp_field(in, 0), "refused")) wp_deny(out, "not there");
}

static int64_t rate(wp_input in) {
    int64_t pods = wp_int(wp_field(in, 0));
    int failed = 0;
    if (pods == 7) return (int64_t)(wp_len(wp_get(wp_ask("test.echo", "{\"n\":%d}", 3000), "text")) / 100);
    if (pods == 8) wp_call("test.none", 0, &failed, "");
    return failed ? 99 : 3 * pods;
}

static wp_judgement judge(const int64_t *pod, const int64_t *node) {
    int64_t room = node[1] - node[0];
    return room <= 0 ? wp_never(1) : pod[0] > room ? wp_unfit(0) : wp_fits(room);
}
WP_TABLE(judge);

static void plan(wp_input in, wp_answer *out) {
    wp_value name = wp_get(in, "name"), primary = wp_get(in, "primary");
    if (wp_is_null(primary)) {
        wp_delete(out, "v1", "Service", wp_string(wp_get(in, "namespace")), wp_string(name));
        return;
    }
    if (wp_eq(name, "db")) {
        wp_patch(out, (wp_target){.api_version = "apps/v1", .kind = "Deployment", .name = "db", .subresource = "scale"},
                 "{\"op\":\"test\",\"path\":\"/spec/replicas\",\"value\":%d},{\"op\":\"replace\",\"path\":\"/spec/replicas\",\"value\":%d}", 3, 0);
        wp_delete_target(out, (wp_target){.api_version = "v1", .kind = "Service", .name = "old", .uid = "u-1", .resource_version = "7", .propagation = "Foreground"});
        return;
    }
    if (wp_eq(name, "broken")) {
        wp_fail(out, "broken \"%t\"", name);
        return;
    }
    wp_apply(out, "{\"apiVersion\":\"v1\",\"kind\":\"Service\",\"metadata\":{\"name\":%v},\"spec\":%v}", name, wp_get(primary, "spec"));
    wp_status(out, "{\"seen\":true}");
    wp_condition(out, "Ready", "True", "Made", "made it");
    wp_event(out, "Normal", "Made", "made %t", name);
    wp_requeue(out, 30);
}

static void admit(wp_input in, wp_answer *out) {
    if (wp_bool(wp_field(in, 0))) wp_deny_field(out, "HostNetwork", "no");
}

WP_PLUGIN = {
    .name = "conformance", .version = "1.2.3", .settings = configure,
    .settings_schema = "{\"required\": [\"key\"]}",
    .groups = {.of = "pod.metadata.namespace", .names = (const wp_group[]){{"red", "a"}, {"crimson", "a"}, {0}}, .other = "b \"c\""},
    .mutate = {.decide = mutate, .match = {{.operations = {"CREATE"}, .groups = {""}, .versions = {"v1"}, .resources = {"pods"}}}},
    .validate = {.decide = validate, .fields = {"object.metadata.name", "object.metadata.labels", "operation"},
                 .alternatives = {{"@size", {{"Deployment", "spec.replicas"}, {"*", "spec.size"}}}}, .side_effects = "NoneOnDryRun"},
    .convert = {.decide = convert, .match = {{.groups = {"example.com"}, .resources = {"endpoints"}}}, .fields = {"object.spec.hostPort", "desiredAPIVersion"}},
    .validate_custom = {.decide = validate_custom, .fields = {"object.spec.port"}},
    .authorize = {.decide = authorize, .fields = {"user", "resourceAttributes.namespace"}, .pure = 1},
    .pre_enqueue = {.decide = pre_enqueue, .fields = {"pod.metadata.labels"}, .events = {"podChanged"}},
    .queue_sort = {.rate = rank, .fields = {"pod.spec.priority"}},
    .pre_filter = {.decide = pre_filter, .fields = {"pod.metadata.name", "nodes"}},
    .filter = {.decide = filter, .fields = {"node.metadata.name"}, .events = {"nodeAdded", "podRemoved"}},
    .post_filter = {.decide = post_filter, .fields = {"pod.metadata.name", "failed[*].node"}, .pure = 1},
    .pre_score = {.decide = pre_score, .fields = {"nodes"}},
    .normalize = {.scale = normalize, .fields = {"state"}},
    .reserve = {.decide = reserve, .fields = {"nodeName"}},
    .unreserve = {.decide = told, .fields = {"nodeName"}},
    .permit = {.decide = permit, .fields = {"nodeName", "waitedSeconds"}},
    .pre_bind = {.decide = pre_bind, .fields = {"nodeName"}},
    .bind = {.decide = bind, .fields = {"nodeName"}},
    .post_bind = {.decide = told, .fields = {"nodeName"}},
    .score = {.rate = rate, .fields = {"pods"}},
    .table = {.judge_all = judge_all, .columns = {{.path = "pods"}, {.path = "allocatable.pods"}}, .pod = {{.path = "requests.milliCPU"}}, .reasons = {"full", "never"}},
    .reconcile = {.plan = plan,
                  .primary = {"apps", "v1", "deployments", "Deployment", "app=web"},
                  .owned = {{"", "v1", "services", "Service", ""}}},
    .node_admission = {.decide = admit, .fields = {"pod.spec.hostNetwork"}},
};
