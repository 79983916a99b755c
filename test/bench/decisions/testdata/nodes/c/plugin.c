/* The fewest-pods plugin prefers nodes with room for pods. One call judges all nodes. */
#include "wasmplane.h"

static wp_judgement judge(const int64_t *pod, const int64_t *node) {
    (void)pod;
    return node[0] >= node[1] ? wp_unfit(0) : wp_fits(100 * (node[1] - node[0]) / node[1]);
}
WP_TABLE(judge);

WP_PLUGIN = {
    .name = "fewest-pods", .version = "0.1.0",
    .table = {
        .judge_all = judge_all,
        .columns = {{.path = "pods"}, {.path = "allocatable.pods"}},
        .reasons = {"node(s) were full"},
    },
};
