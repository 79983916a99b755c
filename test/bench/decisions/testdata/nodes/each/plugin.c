/* The fewest-pods plugin prefers nodes with room for pods. It is asked for each node. */
#include "wasmplane.h"

static void filter(wp_input in, wp_answer *out) {
    if (wp_int(wp_field(in, 0)) >= wp_int(wp_field(in, 1))) wp_deny(out, "node(s) were full");
}

static int64_t rate(wp_input in) {
    int64_t pods = wp_int(wp_field(in, 0)), room = wp_int(wp_field(in, 1));
    return room > 0 ? 100 * (room - pods) / room : 0;
}

WP_PLUGIN = {
    .name = "fewest-pods", .version = "0.1.0",
    .filter = {.decide = filter, .fields = {"pods", "allocatable.pods"}},
    .score = {.rate = rate, .fields = {"pods", "allocatable.pods"}},
};
