// SPDX-License-Identifier: Apache-2.0

// A plugin in C++, from sdk/spec alone: it refuses pods without the label owner.
#include <cstdint>
#include <string>
#include <string_view>
using namespace std::literals;

static constexpr auto manifest =
    R"({"abi":1,"name":"owners","version":"1.0.0","hooks":[{"op":2,"point":"admission.validate",
    "match":[{"operations":["CREATE"],"apiGroups":[""],"apiVersions":["v1"],"resources":["pods"]}],
    "fields":["object.metadata.labels.owner"]}]})"sv;
static std::string input, output;

static int64_t answer(std::string_view text) {
    output = text;
    return (int64_t)(uintptr_t)output.data() << 32 | (int64_t)output.size();
}

extern "C" {
[[clang::export_name("describe")]] int64_t describe() { return answer(manifest); }

[[clang::export_name("alloc")]] char *alloc(uint32_t length) {
    input.resize(length);
    return input.data();
}

[[clang::export_name("call")]] int64_t call(int32_t, const char *at, uint32_t length) {
    auto document = std::string_view(at, length); // {"object":{"metadata":{"labels":{"owner":"a"}}}}
    auto found = document.find(R"("owner":")");
    if (found != document.npos && document[found + 9] != '"') return 0;
    return answer(R"({"allowed":false,"message":"name an owner","field":"metadata.labels.owner"})");
}
}
