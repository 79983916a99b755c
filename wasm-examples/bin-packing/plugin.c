// SPDX-License-Identifier: Apache-2.0

/* The bin-packing plugin fills nodes: it prefers those of whose resources the most
 * will be taken, by a curve and with a weight for each resource. One call judges all nodes. */
#include "wasmplane.h"

enum { RESOURCES = 8, POINTS = 16 };

static struct {
    int64_t weight;
} resources[RESOURCES];
static size_t count;

/* The curve: at a utilisation in percent, a score. */
static struct {
    int64_t utilization, score;
} shape[POINTS];
static size_t points;

/* Where the scheduler's tables keep a resource: cpu in thousandths, extended ones by name. */
static const char *place(const char *table, wp_value name) {
    if (wp_eq(name, "cpu")) return wp_format("%s.milliCPU", table);
    if (wp_eq(name, "memory")) return wp_format("%s.memory", table);
    if (wp_eq(name, "ephemeral-storage")) return wp_format("%s.ephemeralStorage", table);
    return wp_format("%s.scalar[%v]", table, name);
}

static const char *read_shape(wp_value given) {
    if (!wp_exists(given)) { /* the straight line of MostAllocated */
        shape[1].utilization = shape[1].score = 100;
        points = 2;
        return 0;
    }
    points = wp_len(given);
    if (points < 1 || points > POINTS) return "shape has 1 to 16 points";
    for (size_t i = 0; i < points; i++) {
        shape[i].utilization = wp_int(wp_get(wp_at(given, i), "utilization"));
        shape[i].score = wp_int(wp_get(wp_at(given, i), "score"));
        if (shape[i].utilization < 0 || shape[i].utilization > 100 || shape[i].score < 0 || shape[i].score > 100) return "utilization and score of a point are 0 to 100";
        if (i && shape[i].utilization <= shape[i - 1].utilization) return "the points of shape are in the order of their utilization";
    }
    return 0;
}

/* The columns of the table depend on the resources: three of each, in their order. */
static const char *configure(wp_value settings) {
    static const char usual[] = "[{\"name\":\"cpu\"},{\"name\":\"memory\"}]";
    wp_value list = wp_get(settings, "resources");
    if (!wp_exists(list)) list = wp_parse(usual, sizeof usual - 1);
    count = wp_len(list);
    if (count < 1 || count > RESOURCES) return "resources are 1 to 8";
    wp_table *t = &wasmplane_plugin.table;
    for (size_t i = 0; i < count; i++) {
        wp_value name = wp_get(wp_at(list, i), "name"), weight = wp_get(wp_at(list, i), "weight");
        resources[i].weight = wp_exists(weight) ? wp_int(weight) : 1;
        if (!wp_len(name) || resources[i].weight < 1 || resources[i].weight > 100) return "each of resources has a name, and a weight of 1 to 100";
        t->columns[2 * i] = (wp_column){.path = place("allocatable", name)};
        /* What a pod that asks for nothing is thought to take counts, too, for cpu and memory. */
        const char *taken = wp_eq(name, "cpu") || wp_eq(name, "memory") ? "nonZero" : "requested";
        t->columns[2 * i + 1] = (wp_column){.path = place(taken, name)};
        t->pod[i] = (wp_column){.path = place(wp_eq(name, "cpu") || wp_eq(name, "memory") ? "nonZero" : "requests", name)};
    }
    t->columns[2 * count].path = t->pod[count].path = 0; /* the end of the lists */
    return read_shape(wp_get(settings, "shape"));
}

static int64_t score_at(int64_t utilization) {
    if (utilization <= shape[0].utilization) return shape[0].score;
    for (size_t i = 1; i < points; i++) {
        if (utilization > shape[i].utilization) continue;
        int64_t from = shape[i - 1].utilization, low = shape[i - 1].score;
        return low + (shape[i].score - low) * (utilization - from) / (shape[i].utilization - from);
    }
    return shape[points - 1].score;
}

/* Filtering is the scheduler's own: a node that cannot hold the pod does not come here in earnest. */
static wp_judgement judge(const int64_t *pod, const int64_t *node) {
    int64_t sum = 0, weights = 0;
    for (size_t i = 0; i < count; i++) {
        int64_t room = node[2 * i], taken = node[2 * i + 1] + pod[i];
        if (!room) continue; /* the node has none of it: nothing to pack */
        sum += resources[i].weight * score_at(taken >= room ? 100 : taken * 100 / room);
        weights += resources[i].weight;
    }
    return wp_fits(weights ? sum / weights : 0);
}
WP_TABLE(judge);

WP_PLUGIN = {
    .name = "bin-packing", .version = "1.0.0", .settings = configure,
    .table = {.judge_all = judge_all,
              .columns = {{.path = "allocatable.milliCPU"}, {.path = "nonZero.milliCPU"}}, /* until the settings say more */
              .pod = {{.path = "nonZero.milliCPU"}}},
};
