/* DESIGN: each loop formats its lines into a block of its own, without lock or system
 * call, and hands the block to the log writer when it is full or a second old. A field
 * is escaped and cut at ACCESS_FIELD_MAX bytes, so that a line has a bound and a client
 * can neither forge fields nor lines. Query strings are part of the target, as in every
 * such log; cookies and credentials never appear. */
#include "observe/access_log.h"
#include "base/buffer.h"
#include "config/config.h"
#include "observe/escape.h"
#include "observe/log.h"
#include "observe/log_writer.h"
#include "request/request.h"

#include <stdlib.h>
#include <time.h>

enum {
    BLOCK = 32768, /* handed over when this much has gathered */
    FLUSH_MS = 1000,
    STATUS_CLIENT_GONE = 499, /* left before there was an answer; what nginx writes for it */
};

struct access_buffer {
    struct loop *loop;
    struct buffer text;
    unsigned lines;
    struct timer timer;
    int64_t second; /* the times below are of this one */
    char combined_time[40];
    char json_time[24];
};

static void hand_over(struct access_buffer *b)
{
    if (b->text.len > 0) {
        log_writer_put(LOG_SINK_ACCESS, b->text.data, b->text.len, b->lines);
    }
    b->text = BUFFER_EMPTY;
    b->lines = 0;
    timer_stop(b->loop, &b->timer);
}

static void timer_fired(struct timer *timer)
{
    hand_over(CONTAINER_OF(timer, struct access_buffer, timer));
}

static struct access_buffer *buffer_of(struct loop *loop)
{
    struct access_buffer *b = loop_slot(loop, LOOP_SLOT_LOG);
    if (b == NULL) {
        b = calloc(1, sizeof *b);
        if (b == NULL) {
            return NULL;
        }
        b->loop = loop;
        b->second = -1;
        b->timer.fire = timer_fired;
        loop_slot_set(loop, LOOP_SLOT_LOG, b);
    }
    return b;
}

/* The name of the month must not depend on the locale that an endpoint may have set. */
static void format_times(struct access_buffer *b, int64_t second)
{
    static const char months[][4] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                     "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
    time_t time = (time_t)second;
    struct tm tm;
    localtime_r(&time, &tm);
    size_t used = strftime(b->combined_time, sizeof b->combined_time, "[%d/", &tm);
    memcpy(b->combined_time + used, months[tm.tm_mon], 3);
    used += 3;
    strftime(b->combined_time + used, sizeof b->combined_time - used, "/%Y:%H:%M:%S %z]", &tm);
    gmtime_r(&time, &tm);
    strftime(b->json_time, sizeof b->json_time, "%Y-%m-%dT%H:%M:%SZ", &tm);
    b->second = second;
}

static char *put(char *out, const char *text, size_t len)
{
    memcpy(out, text, len);
    return out + len;
}
#define PUT(out, literal) put((out), (literal), sizeof(literal) - 1)

static char *put_number(char *out, uint64_t value)
{
    return out + str_put_u64(out, value);
}

static char *put_quoted(char *out, struct str value)
{
    return value.len == 0 ? PUT(out, "-") : out + escape_quoted(out, ACCESS_FIELD_MAX, &value);
}

/* "HTTP/1.1" */
static char *put_protocol(char *out, const struct access_line *line)
{
    out = PUT(out, "HTTP/");
    out = put_number(out, line->http_major);
    if (line->http_major < 2) {
        *out++ = '.';
        out = put_number(out, line->http_minor);
    }
    return out;
}

size_t access_log_combined(char *start, const struct access_line *line, const char *time)
{
    char *out = put(start, line->client, strlen(line->client));
    out = PUT(out, " - - ");
    out = put(out, time, strlen(time));
    out = PUT(out, " \"");
    out = put_quoted(out, line->method);
    *out++ = ' ';
    out = put_quoted(out, line->target);
    *out++ = ' ';
    out = put_protocol(out, line);
    out = PUT(out, "\" ");
    out = put_number(out, line->status);
    *out++ = ' ';
    out = put_number(out, line->bytes);
    out = PUT(out, " \"");
    out = put_quoted(out, line->referer);
    out = PUT(out, "\" \"");
    out = put_quoted(out, line->user_agent);
    out = PUT(out, "\"\n");
    return (size_t)(out - start);
}

static char *put_json(char *out, const char *key, struct str value)
{
    out = put(out, key, strlen(key));
    out += escape_json(out, ACCESS_FIELD_MAX, &value);
    *out++ = '"';
    return out;
}

size_t access_log_json(char *start, const struct access_line *line, const char *time)
{
    char *out = put_json(start, "{\"time\":\"", str_of(time));
    out = put_json(out, ",\"client\":\"", str_of(line->client));
    out = put_json(out, ",\"method\":\"", line->method);
    out = put_json(out, ",\"host\":\"", line->host);
    out = put_json(out, ",\"target\":\"", line->target);
    out = PUT(out, ",\"protocol\":\"");
    out = put_protocol(out, line);
    out = PUT(out, "\",\"status\":");
    out = put_number(out, line->status);
    out = PUT(out, ",\"bytes\":");
    out = put_number(out, line->bytes);
    out = PUT(out, ",\"milliseconds\":");
    out = put_number(out, line->milliseconds);
    out = put_json(out, ",\"referer\":\"", line->referer);
    out = put_json(out, ",\"user_agent\":\"", line->user_agent);
    out = PUT(out, "}\n");
    return (size_t)(out - start);
}

static struct access_line line_of(const struct request *req)
{
    struct access_line line = {
        .method = req->method_text,
        .host = req->host,
        .target = req->target,
        .http_major = req->http_major,
        .http_minor = req->http_minor,
        .status = req->response.status != 0 ? req->response.status : STATUS_CLIENT_GONE,
        .bytes = req->response.sent,
        .milliseconds = loop_now_ms(req->loop) - req->started_ms,
        .referer = request_known_value(req, HEADER_REFERER),
        .user_agent = request_known_value(req, HEADER_USER_AGENT),
    };
    address_text(&req->client, line.client);
    return line;
}

void access_log_write(const struct request *req)
{
    if (!req->config->logging) {
        return;
    }
    struct access_buffer *b = buffer_of(req->loop);
    if (b == NULL) {
        return;
    }
    int64_t second = loop_wall_seconds(req->loop);
    if (second != b->second) {
        format_times(b, second);
    }
    char *out = buffer_reserve(&b->text, b->text.cap == 0 ? BLOCK + ACCESS_LINE_MAX : ACCESS_LINE_MAX);
    if (out == NULL) {
        buffer_free(&b->text); /* out of memory: these lines are lost */
        b->lines = 0;
        return;
    }
    struct access_line line = line_of(req);
    b->text.len += req->config->access_log_format == ACCESS_LOG_JSON
                       ? access_log_json(out, &line, b->json_time)
                       : access_log_combined(out, &line, b->combined_time);
    b->lines++;
    if (b->text.len >= BLOCK) {
        hand_over(b);
    } else if (!timer_is_running(&b->timer)) {
        timer_start(b->loop, &b->timer, FLUSH_MS);
    }
}

void access_log_loop_end(struct loop *loop)
{
    struct access_buffer *b = loop_slot(loop, LOOP_SLOT_LOG);
    if (b != NULL) {
        hand_over(b);
        loop_slot_set(loop, LOOP_SLOT_LOG, NULL);
        free(b);
    }
}
