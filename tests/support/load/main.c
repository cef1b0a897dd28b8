/* chaos-load --port N --site DIR [--clients 32] [--sessions 8] [--crash-ms 0] [--patience-ms 30000]
 * Runs until SIGTERM, then lets every request end, asks for the sums of the sessions and prints one JSON object.
 * "ready" is printed when the sessions are there and the load begins. Exit code 0 unless it could not work. */
#include "load.h"

#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

enum { EVENTS = 64, TICK_MS = 2, TRIES = 200 };

static volatile sig_atomic_t told_to_stop;

static void on_signal(int number)
{
    (void)number;
    told_to_stop = 1;
}

static struct file read_file(const char *directory, const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *in = fopen(path, "rb");
    if (in == NULL || fseek(in, 0, SEEK_END) != 0) {
        perror(path);
        exit(2);
    }
    struct file file = {.size = (size_t)ftell(in)};
    rewind(in);
    file.data = malloc(file.size + 1);
    if (file.data == NULL || fread(file.data, 1, file.size, in) != file.size) {
        perror(path);
        exit(2);
    }
    fclose(in);
    return file;
}

/* ---- single requests, before and after the load ---------------------------------------------- */

static bool ask_once(uint16_t port, const char *target, const char *cookie, struct answer *answer, char *text)
{
    static const struct kind plain = {.name = "single"};
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(0x7f000001)};
    struct timeval patience = {.tv_sec = 30};
    char out[1024];
    char in[65536];
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    int size = snprintf(out, sizeof out, "GET %s HTTP/1.1\r\nHost: load\r\nConnection: close\r\nCookie: %s\r\n\r\n",
                        target, cookie[0] != '\0' ? cookie : "none=0");
    struct sent sent = {.kind = &plain, .status = 200, .text = text};
    *answer = (struct answer){.state = BODY_HEAD};
    bool whole = false;
    if (connect(fd, (struct sockaddr *)&to, sizeof to) == 0 && send(fd, out, (size_t)size, MSG_NOSIGNAL) == size) {
        ssize_t n;
        while (!whole && (n = recv(fd, in, sizeof in, 0)) > 0) {
            size_t used;
            const char *why;
            enum parse_result result = answer_parse(answer, &sent, in, (size_t)n, &used, &why);
            if (result == PARSE_WRONG) {
                fprintf(stderr, "chaos-load: GET %s: %s, status %d\n", target, why, answer->status);
                break;
            }
            whole = result == PARSE_DONE;
        }
    }
    close(fd);
    return whole;
}

static void ask_surely(uint16_t port, const char *target, const char *cookie, struct answer *answer, char *text)
{
    for (int i = 0; i < TRIES; i++) {
        if (ask_once(port, target, cookie, answer, text)) {
            return;
        }
        usleep(50000);
    }
    fprintf(stderr, "chaos-load: GET %s has no answer\n", target);
    exit(2);
}

static void open_sessions(uint16_t port)
{
    static char text[TEXT_MAX];
    static struct answer answer;
    for (unsigned i = 0; i < session_count; i++) {
        ask_surely(port, "/count", "", &answer, text);
        size_t size = strcspn(answer.set_cookie, ";");
        if (size == 0) {
            fprintf(stderr, "chaos-load: no session\n");
            exit(2);
        }
        snprintf(sessions[i].cookie, sizeof sessions[i].cookie, "%.*s", (int)size, answer.set_cookie);
        sessions[i].attempted = sessions[i].answered = 1;
    }
}

static void look_at_sessions(uint16_t port)
{
    static char text[TEXT_MAX];
    static struct answer answer;
    for (unsigned i = 0; i < session_count; i++) {
        ask_surely(port, "/count?look", sessions[i].cookie, &answer, text);
        sessions[i].final = strtoll(text, NULL, 10);
    }
}

/* ---- report ----------------------------------------------------------------------------------- */

static void print_text(const char *text)
{
    putchar('"');
    for (; *text != '\0'; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\') {
            printf("\\%c", c);
        } else if (c < 0x20 || c >= 0x7f) {
            printf("\\u%04x", c);
        } else {
            putchar(c);
        }
    }
    putchar('"');
}

static void print_report(uint64_t took_ms)
{
    const struct {
        const char *name;
        uint64_t value;
    } numbers[] = {
        {"answered", totals.answered},
        {"connections", totals.connections},
        {"wrong", totals.wrong},
        {"lost", totals.lost},
        {"unanswered", totals.unanswered},
        {"refused", totals.refused},
        {"timed_out", totals.timed_out},
        {"idle_closed", totals.idle_closed},
        {"crashes", totals.crashes},
        {"bytes", totals.bytes},
        {"in_flight_most", totals.in_flight_most},
        {"slowest_ms", totals.slowest_ms},
        {"edit_highest", edit_highest},
        {"milliseconds", took_ms},
    };
    printf("{");
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        printf("\"%s\": %llu, ", numbers[i].name, (unsigned long long)numbers[i].value);
    }
    printf("\"slowest\": ");
    print_text(totals.slowest);
    printf(", \"sessions\": [");
    for (unsigned i = 0; i < session_count; i++) {
        printf("%s{\"attempted\": %llu, \"answered\": %llu, \"highest\": %lld, \"final\": %lld}", i > 0 ? ", " : "",
               (unsigned long long)sessions[i].attempted, (unsigned long long)sessions[i].answered,
               (long long)sessions[i].highest, (long long)sessions[i].final);
    }
    printf("], \"examples\": [");
    for (unsigned i = 0; i < totals.example_count; i++) {
        printf(i > 0 ? ", " : "");
        print_text(totals.examples[i]);
    }
    printf("]}\n");
}

static unsigned number_of(const char *text, unsigned most)
{
    char *end;
    unsigned long number = strtoul(text, &end, 10);
    if (*text == '\0' || *end != '\0' || number > most) {
        fprintf(stderr, "chaos-load: %s is no number up to %u\n", text, most);
        exit(2);
    }
    return (unsigned)number;
}

static void run(const struct client_options *options)
{
    struct epoll_event events[EVENTS];
    uint64_t tick_ms = 0;
    while (!told_to_stop || !clients_all_quiet()) {
        int count = epoll_wait(options->epoll, events, EVENTS, TICK_MS);
        for (int i = 0; i < count; i++) {
            client_ready(events[i].data.ptr, events[i].events);
        }
        if (now_ms() - tick_ms >= TICK_MS) {
            clients_tick(told_to_stop);
            tick_ms = now_ms();
        }
    }
}

int main(int argc, char **argv)
{
    static const struct option names[] = {{"port", 1, NULL, 'p'},     {"site", 1, NULL, 's'},
                                          {"clients", 1, NULL, 'c'},  {"sessions", 1, NULL, 'n'},
                                          {"crash-ms", 1, NULL, 'x'}, {"patience-ms", 1, NULL, 't'},
                                          {NULL, 0, NULL, 0}};
    struct client_options options = {.clients = 32, .patience_ms = 30000};
    const char *site = NULL;
    session_count = 8;
    for (int c; (c = getopt_long(argc, argv, "", names, NULL)) != -1;) {
        switch (c) {
        case 'p': options.port = (uint16_t)number_of(optarg, 65535); break;
        case 's': site = optarg; break;
        case 'c': options.clients = number_of(optarg, CLIENTS_MAX); break;
        case 'n': session_count = number_of(optarg, SESSIONS_MAX); break;
        case 'x': options.crash_ms = number_of(optarg, 1000000); break;
        case 't': options.patience_ms = number_of(optarg, 10000000); break;
        default: return 2;
        }
    }
    if (options.port == 0 || site == NULL || session_count == 0) {
        fprintf(stderr, "usage: chaos-load --port N --site DIR ...: see tests/support/load/main.c\n");
        return 2;
    }
    small_file = read_file(site, "small.txt");
    large_file = read_file(site, "large.bin");
    kinds_prepare();
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    open_sessions(options.port);
    options.epoll = epoll_create1(EPOLL_CLOEXEC);
    clients_open(&options);
    printf("ready\n");
    fflush(stdout);
    uint64_t began_ms = now_ms();
    run(&options);
    uint64_t took_ms = now_ms() - began_ms;
    look_at_sessions(options.port);
    print_report(took_ms);
    return 0;
}
