/* DESIGN: a directory's page shows exactly what the site would serve: names come from the
 * directory on the disk, each is looked up in the site index, and what is not there or
 * hidden is left out. Links are relative, so the page is right under any alias. */
#include "answer/accept.h"
#include "answer/answer.h"
#include "answer/error_page.h"
#include "request/percent.h"
#include "route/site_index.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <time.h>

enum { LISTING_MAX = 10000 };

struct entry {
    char *name;
    uint64_t size;
    int64_t modified;
    enum node_kind kind;
};

enum sort_key { SORT_NAME, SORT_SIZE, SORT_DATE };

struct listing {
    struct entry *entries;
    size_t count;
    size_t cap;
    bool cut; /* there are more */
    enum sort_key key;
    bool descending;
};

/* ---- gathering -------------------------------------------------------------------------- */

static bool listing_add(struct listing *listing, const char *name, const struct site_node *node)
{
    if (listing->count == LISTING_MAX) {
        listing->cut = true;
        return false;
    }
    if (listing->count == listing->cap) {
        size_t cap = listing->cap == 0 ? 64 : listing->cap * 2;
        struct entry *entries = realloc(listing->entries, cap * sizeof *entries);
        if (entries == NULL) {
            return false;
        }
        listing->entries = entries;
        listing->cap = cap;
    }
    struct entry *entry = &listing->entries[listing->count];
    *entry = (struct entry){.size = node->size, .modified = node->mtime.tv_sec, .kind = node->kind};
    entry->name = strdup(name);
    if (entry->name == NULL) {
        return false;
    }
    listing->count++;
    return true;
}

static bool listing_read(struct listing *listing, const struct site_node *directory)
{
    DIR *dir = opendir(directory->file.ptr);
    if (dir == NULL) {
        return false;
    }
    char url[PATH_MAX];
    const struct dirent *found;
    while ((found = readdir(dir)) != NULL) {
        size_t len = strlen(found->d_name);
        if (found->d_name[0] == '.' || directory->url.len + 1 + len > sizeof url) {
            continue;
        }
        memcpy(url, directory->url.ptr, directory->url.len);
        url[directory->url.len] = '/';
        memcpy(url + directory->url.len + 1, found->d_name, len);
        const struct site_node *node = site_lookup(directory->site, (struct str){url, directory->url.len + 1 + len});
        if (node != NULL && !site_node_is_hidden(node) && !listing_add(listing, found->d_name, node)) {
            break;
        }
    }
    closedir(dir);
    return true;
}

static void listing_free(struct listing *listing)
{
    for (size_t i = 0; i < listing->count; i++) {
        free(listing->entries[i].name);
    }
    free(listing->entries);
}

/* ---- order --------------------------------------------------------------------------------- */

/* As people count: "9.txt" before "10.txt", case matters only between equals. */
static int compare_names(const char *a, const char *b)
{
    const char *x = a;
    const char *y = b;
    while (*x != '\0' && *y != '\0') {
        if (ascii_is_digit(*x) && ascii_is_digit(*y)) {
            x += strspn(x, "0");
            y += strspn(y, "0");
            size_t xn = strspn(x, "0123456789");
            size_t yn = strspn(y, "0123456789");
            int order = xn != yn ? (xn < yn ? -1 : 1) : strncmp(x, y, xn);
            if (order != 0) {
                return order;
            }
            x += xn;
            y += yn;
            continue;
        }
        unsigned char cx = (unsigned char)ascii_lower(*x++);
        unsigned char cy = (unsigned char)ascii_lower(*y++);
        if (cx != cy) {
            return cx < cy ? -1 : 1;
        }
    }
    if (*x != *y) {
        return *x == '\0' ? -1 : 1;
    }
    return strcmp(a, b);
}

static int compare_entries(const void *left, const void *right, void *arg)
{
    const struct entry *a = left;
    const struct entry *b = right;
    const struct listing *listing = arg;
    bool a_directory = a->kind == NODE_DIRECTORY;
    bool b_directory = b->kind == NODE_DIRECTORY;
    if (a_directory != b_directory) {
        return a_directory ? -1 : 1;
    }
    int order = 0;
    if (listing->key == SORT_SIZE && !a_directory) {
        order = (a->size > b->size) - (a->size < b->size);
    } else if (listing->key == SORT_DATE) {
        order = (a->modified > b->modified) - (a->modified < b->modified);
    }
    order = order != 0 ? order : compare_names(a->name, b->name);
    return listing->descending ? -order : order;
}

static void read_order(struct listing *listing, struct str query)
{
    struct str pair;
    while (str_split_next(&query, '&', &pair)) {
        if (str_eq(pair, STR("sort=size"))) {
            listing->key = SORT_SIZE;
        } else if (str_eq(pair, STR("sort=date"))) {
            listing->key = SORT_DATE;
        } else if (str_eq(pair, STR("order=desc"))) {
            listing->descending = true;
        }
    }
}

/* ---- pieces of text ---------------------------------------------------------------------------- */

static void append_size(struct buffer *out, uint64_t size)
{
    static const char *const units[] = {"bytes", "kB", "MB", "GB", "TB", "PB", "EB"};
    if (size < 1000) {
        buffer_printf(out, "%llu %s", (unsigned long long)size, size == 1 ? "byte" : units[0]);
        return;
    }
    double value = (double)size;
    size_t unit = 0;
    while (value >= 999.5 && unit + 1 < ARRAY_LEN(units)) {
        value /= 1000;
        unit++;
    }
    buffer_printf(out, value < 9.95 ? "%.1f %s" : "%.0f %s", value, units[unit]);
}

static void append_time(struct buffer *out, int64_t seconds, const char *format)
{
    char text[64];
    time_t when = (time_t)seconds;
    struct tm tm;
    if (gmtime_r(&when, &tm) != NULL && strftime(text, sizeof text, format, &tm) > 0) {
        buffer_append_z(out, text);
    }
}

/* ---- HTML --------------------------------------------------------------------------------------- */

static const char listing_style[] =
    "body{padding:32px 20px}main{max-width:60rem;margin:0 auto}"
    "h1{margin:0 0 18px;font-size:1.3rem;font-weight:600;line-height:1.4;overflow-wrap:anywhere}"
    "h1 a{color:var(--accent);text-decoration:none}h1 a:hover{text-decoration:underline}"
    "h1 span{color:var(--soft);font-weight:400;padding:0 .3em}"
    "table{width:100%;border-collapse:separate;border-spacing:0;background:var(--card);"
    "border:1px solid var(--line);border-radius:12px;overflow:hidden}"
    "th{text-align:left;font-size:.8rem;font-weight:600;color:var(--soft);border-bottom:1px solid var(--line)}"
    "th a{color:inherit;text-decoration:none}th a:hover{color:var(--accent)}"
    "th,td{padding:9px 16px}tr+tr td{border-top:1px solid var(--line)}tbody tr:hover{background:var(--hover)}"
    "th:first-child{width:70%}td:first-child{overflow-wrap:anywhere}td a{color:inherit;text-decoration:none}td "
    "a:hover{color:var(--accent)}"
    "td.d a{font-weight:600}"
    "svg{width:18px;height:18px;vertical-align:-3px;margin-right:10px;fill:none;stroke:var(--soft);"
    "stroke-width:1.6;stroke-linejoin:round;stroke-linecap:round}td.d svg{stroke:var(--accent)}"
    ".n{text-align:right;white-space:nowrap;color:var(--soft);font-variant-numeric:tabular-nums}"
    "footer,.empty{font-size:.85rem;color:var(--soft)}footer{margin-top:14px}.empty{text-align:center;padding:28px}"
    "@media(max-width:600px){body{padding:18px 12px}th,td{padding:10px 12px}"
    "thead .t,td.t{display:none}}";

static const char listing_icons[] =
    "<svg style=\"display:none\"><symbol id=\"d\" viewBox=\"0 0 20 20\">"
    "<path d=\"M2 5.5A1.5 1.5 0 0 1 3.5 4h3.9l2 2h7.1A1.5 1.5 0 0 1 18 7.5v7a1.5 1.5 0 0 1-1.5 1.5h-13A1.5 1.5 0 0 1 2 "
    "14.5z\"/>"
    "</symbol><symbol id=\"f\" viewBox=\"0 0 20 20\">"
    "<path d=\"M5 2.5h6.5L15.5 6.5v10a1 1 0 0 1-1 1H5a1 1 0 0 1-1-1v-13a1 1 0 0 1 1-1zM11.5 2.5v4h4\"/></symbol>"
    "<symbol id=\"x\" viewBox=\"0 0 20 20\"><path d=\"M7 6l-4 4 4 4M13 6l4 4-4 4\"/></symbol>"
    "<symbol id=\"u\" viewBox=\"0 0 20 20\"><path d=\"M6 7l4-4 4 4M10 3v9a4 4 0 0 0 4 4h2\"/></symbol></svg>\n";

/* "Home / photos / 2026": each but the last a link, as many levels up as needed. */
static void write_breadcrumb(struct buffer *out, struct str path)
{
    unsigned depth = 0;
    for (size_t i = 1; i < path.len; i++) {
        depth += path.ptr[i] == '/';
    }
    struct str rest = path;
    struct str part;
    buffer_append_z(out, "<h1>");
    if (depth == 0) {
        buffer_append_z(out, "Home");
    } else {
        buffer_append_z(out, "<a href=\"");
        for (unsigned i = 0; i < depth; i++) {
            buffer_append_z(out, "../");
        }
        buffer_append_z(out, "\">Home</a>");
    }
    while (depth > 0 && str_split_next(&rest, '/', &part)) {
        if (part.len == 0) {
            continue;
        }
        depth--;
        buffer_append_z(out, "<span>/</span>");
        if (depth > 0) {
            buffer_append_z(out, "<a href=\"");
            for (unsigned i = 0; i < depth; i++) {
                buffer_append_z(out, "../");
            }
            buffer_append_z(out, "\">");
        }
        buffer_append_html(out, part);
        buffer_append_z(out, depth > 0 ? "</a>" : "");
    }
    buffer_append_z(out, "</h1>\n");
}

static void write_heading(struct buffer *out, const struct listing *listing, enum sort_key key, const char *word,
                          const char *label, const char *class)
{
    bool current = listing->key == key;
    bool next_descending = current && !listing->descending;
    buffer_printf(out, "<th%s%s><a href=\"?sort=%s%s\">%s%s</a></th>", class,
                  !current              ? ""
                  : listing->descending ? " aria-sort=\"descending\""
                                        : " aria-sort=\"ascending\"",
                  word, next_descending ? "&amp;order=desc" : "", label,
                  !current              ? ""
                  : listing->descending ? " &darr;"
                                        : " &uarr;");
}

static void write_row(struct buffer *out, const struct entry *entry)
{
    bool directory = entry->kind == NODE_DIRECTORY;
    const char *icon = directory ? "d" : entry->kind == NODE_ENDPOINT ? "x" : "f";
    buffer_printf(out, "<tr><td class=\"%s\"><a href=\"", icon);
    percent_encode(out, str_of(entry->name));
    buffer_printf(out, "%s\"><svg aria-hidden=\"true\"><use href=\"#%s\"/></svg>", directory ? "/" : "", icon);
    buffer_append_html(out, str_of(entry->name));
    buffer_append_z(out, directory ? "/</a></td><td class=\"n\">" : "</a></td><td class=\"n\">");
    if (entry->kind == NODE_FILE) {
        append_size(out, entry->size);
    }
    buffer_append_z(out, "</td><td class=\"n t\"><time datetime=\"");
    append_time(out, entry->modified, "%Y-%m-%dT%H:%M:%SZ");
    buffer_append_z(out, "\">");
    append_time(out, entry->modified, "%-d %b %Y, %H:%M");
    buffer_append_z(out, "</time></td></tr>\n");
}

static void write_totals(struct buffer *out, const struct listing *listing)
{
    size_t directories = 0;
    uint64_t bytes = 0;
    for (size_t i = 0; i < listing->count; i++) {
        directories += listing->entries[i].kind == NODE_DIRECTORY;
        bytes += listing->entries[i].kind == NODE_FILE ? listing->entries[i].size : 0;
    }
    size_t files = listing->count - directories;
    buffer_printf(out, "<footer>%zu folder%s, %zu file%s, ", directories, directories == 1 ? "" : "s", files,
                  files == 1 ? "" : "s");
    append_size(out, bytes);
    buffer_append_z(out, listing->cut ? "; more that are not shown. Times are UTC.</footer>\n"
                                      : ". Times are UTC.</footer>\n");
}

static void write_html(struct buffer *out, const struct listing *listing, struct str path)
{
    buffer_append_z(out, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
                         "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n<title>");
    buffer_append_html(out, path);
    buffer_append_z(out, "</title>\n<style>");
    buffer_append_z(out, page_style);
    buffer_append_z(out, listing_style);
    buffer_append_z(out, "</style>\n</head>\n<body>\n");
    buffer_append_z(out, listing_icons);
    buffer_append_z(out, "<main>\n");
    write_breadcrumb(out, path);
    buffer_append_z(out, "<table>\n<thead><tr>");
    write_heading(out, listing, SORT_NAME, "name", "Name", "");
    write_heading(out, listing, SORT_SIZE, "size", "Size", " class=\"n\"");
    write_heading(out, listing, SORT_DATE, "date", "Changed", " class=\"n t\"");
    buffer_append_z(out, "</tr></thead>\n<tbody>\n");
    if (path.len > 1) {
        buffer_append_z(out, "<tr><td class=\"u\"><a href=\"../\"><svg aria-hidden=\"true\"><use href=\"#u\"/></svg>"
                             "Parent folder</a></td><td class=\"n\"></td><td class=\"n t\"></td></tr>\n");
    }
    for (size_t i = 0; i < listing->count; i++) {
        write_row(out, &listing->entries[i]);
    }
    if (listing->count == 0) {
        buffer_append_z(out, "<tr><td class=\"empty\" colspan=\"3\">This folder is empty.</td></tr>\n");
    }
    buffer_append_z(out, "</tbody>\n</table>\n");
    write_totals(out, listing);
    buffer_append_z(out, "</main>\n</body>\n</html>\n");
}

/* ---- JSON and text ---------------------------------------------------------------------------------- */

static void write_json(struct buffer *out, const struct listing *listing, struct str path)
{
    static const char *const kinds[] = {
        [NODE_FILE] = "file", [NODE_DIRECTORY] = "directory", [NODE_ENDPOINT] = "endpoint"};
    buffer_append_z(out, "{\"path\":");
    buffer_append_json(out, path);
    buffer_append_z(out, ",\"entries\":[");
    for (size_t i = 0; i < listing->count; i++) {
        const struct entry *entry = &listing->entries[i];
        buffer_append_z(out, i > 0 ? ",\n{\"name\":" : "\n{\"name\":");
        buffer_append_json(out, str_of(entry->name));
        buffer_printf(out, ",\"type\":\"%s\"", kinds[entry->kind]);
        if (entry->kind == NODE_FILE) {
            buffer_printf(out, ",\"size\":%llu", (unsigned long long)entry->size);
        }
        buffer_append_z(out, ",\"modified\":\"");
        append_time(out, entry->modified, "%Y-%m-%dT%H:%M:%SZ");
        buffer_append_z(out, "\"}");
    }
    buffer_append_z(out, listing->cut ? "\n],\"truncated\":true}\n" : "\n],\"truncated\":false}\n");
}

static void write_text(struct buffer *out, const struct listing *listing)
{
    for (size_t i = 0; i < listing->count; i++) {
        const struct entry *entry = &listing->entries[i];
        /* One name a line, whatever bytes it has. */
        for (const char *c = entry->name; *c != '\0'; c++) {
            buffer_append_char(out, (unsigned char)*c < 0x20 ? '?' : *c);
        }
        buffer_append_z(out, entry->kind == NODE_DIRECTORY ? "/\n" : "\n");
    }
}

/* ---- answer ------------------------------------------------------------------------------------------- */

static void start(struct request *req)
{
    if (answer_refuse_method(req, answer_listing.allow)) {
        return;
    }
    struct listing listing = {0};
    read_order(&listing, req->query);
    if (!req->config->directory_listing || !listing_read(&listing, req->node)) {
        error_page_send(req, req->config->directory_listing && errno == EACCES ? 403 : 404, NULL);
        return;
    }
    if (listing.count > 1) {
        qsort_r(listing.entries, listing.count, sizeof *listing.entries, compare_entries, &listing);
    }
    struct buffer page = BUFFER_EMPTY;
    struct str type = STR("text/html; charset=utf-8");
    switch (page_type_preferred(request_header(req, STR("Accept")))) {
    case PAGE_HTML: write_html(&page, &listing, req->path); break;
    case PAGE_JSON:
        write_json(&page, &listing, req->path);
        type = STR("application/json");
        break;
    case PAGE_TEXT:
        write_text(&page, &listing);
        type = STR("text/plain; charset=utf-8");
        break;
    }
    listing_free(&listing);
    req->response.status = 200;
    page_headers_add(req);
    response_header_set(req, STR("Cache-Control"), STR("no-cache"));
    page_send_buffer(req, &page, type);
}

const struct answer answer_listing = {
    .name = "listing",
    .allow = "GET, HEAD, OPTIONS",
    .start = start,
};
