// SPDX-License-Identifier: Apache-2.0

// A server of HTTP as a component: wasi:http/incoming-handler of WASI 0.2, by its functions as core code calls them, without a
// language's runtime. It answers with the container's variable GREETING and the path. Each request has an instance of its own.
#include <stddef.h>
#include <stdint.h>

#define HTTP(name) __attribute__((import_module("wasi:http/types@0.2.12"), import_name(name)))
#define STREAMS(name) __attribute__((import_module("wasi:io/streams@0.2.12"), import_name(name)))

typedef struct { const char *at; size_t size; } text;
typedef struct { text name, value; } variable;

HTTP("[constructor]fields") int32_t new_fields(void);
HTTP("[method]fields.append") void add_field(int32_t fields, const char *name, size_t, const char *value, size_t, void *result);
HTTP("[method]incoming-request.path-with-query") void path_of(int32_t request, void *result);
HTTP("[constructor]outgoing-response") int32_t new_response(int32_t fields);
HTTP("[method]outgoing-response.set-status-code") int32_t set_status(int32_t response, int32_t code);
HTTP("[method]outgoing-response.body") void body_of(int32_t response, void *result);
HTTP("[static]response-outparam.set")
void set_response(int32_t out, int32_t failed, int32_t response, int32_t, int64_t, int32_t, int32_t, int32_t, int32_t);
HTTP("[method]outgoing-body.write") void stream_of(int32_t body, void *result);
HTTP("[static]outgoing-body.finish") void finish(int32_t body, int32_t some, int32_t trailers, void *result);
STREAMS("[method]output-stream.blocking-write-and-flush") void put(int32_t stream, const char *, size_t, void *result);
STREAMS("[resource-drop]output-stream") void drop_stream(int32_t stream);
__attribute__((import_module("wasi:cli/environment@0.2.12"), import_name("get-environment"))) void environment(void *result);

// What the host hands in lies here; nothing is freed, as an instance has one request.
static _Alignas(8) char heap[1 << 20];
static size_t used;

__attribute__((export_name("cabi_realloc"))) void *cabi_realloc(void *old, size_t had, size_t align, size_t size) {
    size_t at = (used + align - 1) & ~(align - 1);
    if (size > sizeof heap - at) __builtin_trap();
    used = at + size;
    for (size_t i = 0; i < had && i < size; i++) heap[at + i] = ((char *)old)[i];
    return heap + at;
}

static int same(text a, const char *b) {
    size_t i = 0;
    while (i < a.size && b[i] && a.at[i] == b[i]) i++;
    return i == a.size && !b[i];
}

static text greeting(void) {
    struct { variable *at; size_t size; } all;
    environment(&all);
    for (size_t i = 0; i < all.size; i++)
        if (same(all.at[i].name, "GREETING")) return all.at[i].value;
    return (text){"hello", 5};
}

__attribute__((export_name("wasi:http/incoming-handler@0.2.12#handle"))) void handle(int32_t request, int32_t out) {
    _Alignas(8) int32_t result[16]; // the case of a result, and what it has
    path_of(request, result);
    text path = result[0] ? (text){(char *)result[1], (size_t)result[2]} : (text){"/", 1};
    int32_t fields = new_fields();
    add_field(fields, "content-type", 12, "text/plain", 10, result);
    int32_t response = new_response(fields);
    if (same(path, "/missing")) set_status(response, 404);
    body_of(response, result);
    int32_t body = result[1];
    set_response(out, 0, response, 0, 0, 0, 0, 0, 0);
    stream_of(body, result);
    int32_t stream = result[1];
    text parts[] = {greeting(), {" from ", 6}, path, {"\n", 1}};
    for (int i = 0; i < 4; i++) put(stream, parts[i].at, parts[i].size, result);
    drop_stream(stream);
    finish(body, 0, 0, result);
}
