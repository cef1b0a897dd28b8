/* The core as a client: see fuzz_ws.h. */
#include "fuzz.h"
#include "fuzz_ws.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    return fuzz_ws(WS_CLIENT, data, size);
}
