/* `kiln ws`: what its files share. The command line is read once, by tools/ws.c. */
#ifndef KILN_TOOLS_WS_TOOL_H
#define KILN_TOOLS_WS_TOOL_H

#include <kiln_ws.h>
#include <stdbool.h>

enum { LIST_MAX = 64 };
enum exit_code { EXIT_ALL_WELL = 0, EXIT_NO_CONNECTION = 1, EXIT_USAGE = 2, EXIT_BROKEN = 3 };

struct ws_tool {
    const char *url;
    kiln_ws_options options;
    const char *headers[LIST_MAX + 1];
    size_t header_count;
    const char *protocols[LIST_MAX + 1];
    size_t protocol_count;
    const char *execute[LIST_MAX + 1]; /* sent before anything of standard input */
    size_t execute_count;
    bool binary;
    bool echo; /* messages go back */
    bool one; /* ends after the first message */
    bool quiet;
    bool verbose;
    bool timing;
    bool slash; /* lines that begin with / are commands */
    double wait_s; /* of silence after the end of the input; negative: until the server closes */
    double ping_s; /* 0: none */
    int echo_port; /* -1: no echo server */
    const char *address;
    bool bench;
    int connections;
    int64_t messages;
    size_t size;
    double patience_s; /* that nothing may come back; 0: for ever */
};

int ws_talk(const struct ws_tool *tool);
int ws_echo(const struct ws_tool *tool);
int ws_bench(const struct ws_tool *tool);

#endif
