#include "answer/conditional.h"

#include <stdio.h>
#include <time.h>

/* ---- dates ----------------------------------------------------------------------------- */

static const char day_names[7][10] = {"Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"};
static const char month_names[12][4] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                        "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};

void http_date_format(int64_t seconds, char out[HTTP_DATE_LENGTH + 1])
{
    const int64_t first = -62167219200; /* year 0 */
    const int64_t last = 253402300799; /* end of year 9999 */
    time_t when = (time_t)(seconds < first ? first : seconds > last ? last : seconds);
    struct tm tm;
    gmtime_r(&when, &tm);
    /* The casts bound what the compiler must assume of the fields; the values are in range. */
    snprintf(out, HTTP_DATE_LENGTH + 1, "%.3s, %02u %s %04u %02u:%02u:%02u GMT", day_names[tm.tm_wday % 7],
             (unsigned)tm.tm_mday % 100, month_names[tm.tm_mon % 12], (unsigned)(tm.tm_year + 1900) % 10000,
             (unsigned)tm.tm_hour % 100, (unsigned)tm.tm_min % 100, (unsigned)tm.tm_sec % 100);
}

/* Takes `text` off the front. */
static bool take(struct str *rest, const char *text)
{
    struct str wanted = str_of(text);
    if (!str_starts(*rest, wanted)) {
        return false;
    }
    *rest = str_from(*rest, wanted.len);
    return true;
}

static bool take_number(struct str *rest, size_t digits, int *out)
{
    uint64_t value;
    if (rest->len < digits || !str_to_u64(str_first(*rest, digits), 9999, &value)) {
        return false;
    }
    *out = (int)value;
    *rest = str_from(*rest, digits);
    return true;
}

static bool take_day_name(struct str *rest, size_t letters)
{
    for (size_t i = 0; i < 7; i++) {
        struct str name = str_of(day_names[i]);
        if (letters != 0) {
            name = str_first(name, letters);
        }
        if (str_starts(*rest, name)) {
            *rest = str_from(*rest, name.len);
            return true;
        }
    }
    return false;
}

static bool take_month(struct str *rest, int *month)
{
    for (int i = 0; i < 12; i++) {
        if (take(rest, month_names[i])) {
            *month = i;
            return true;
        }
    }
    return false;
}

static bool take_time(struct str *rest, struct tm *tm)
{
    return take_number(rest, 2, &tm->tm_hour) && take(rest, ":") && take_number(rest, 2, &tm->tm_min) &&
           take(rest, ":") && take_number(rest, 2, &tm->tm_sec);
}

/* "06 Nov 1994 08:49:37 GMT", after "Sun, ". */
static bool parse_fixed(struct str rest, struct tm *tm)
{
    return take_number(&rest, 2, &tm->tm_mday) && take(&rest, " ") && take_month(&rest, &tm->tm_mon) &&
           take(&rest, " ") && take_number(&rest, 4, &tm->tm_year) && take(&rest, " ") && take_time(&rest, tm) &&
           take(&rest, " GMT") && rest.len == 0;
}

/* "06-Nov-94 08:49:37 GMT", after "Sunday, ". */
static bool parse_rfc850(struct str rest, struct tm *tm)
{
    return take_number(&rest, 2, &tm->tm_mday) && take(&rest, "-") && take_month(&rest, &tm->tm_mon) &&
           take(&rest, "-") && take_number(&rest, 2, &tm->tm_year) && take(&rest, " ") && take_time(&rest, tm) &&
           take(&rest, " GMT") && rest.len == 0;
}

/* "Nov  6 08:49:37 1994", after "Sun ". */
static bool parse_asctime(struct str rest, struct tm *tm)
{
    if (!take_month(&rest, &tm->tm_mon) || !take(&rest, " ")) {
        return false;
    }
    bool padded = take(&rest, " ");
    return take_number(&rest, padded ? 1 : 2, &tm->tm_mday) && take(&rest, " ") && take_time(&rest, tm) &&
           take(&rest, " ") && take_number(&rest, 4, &tm->tm_year) && rest.len == 0;
}

static bool is_leap(int year)
{
    return (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
}

static bool to_seconds(const struct tm *tm, int64_t *seconds)
{
    static const int month_days[12] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    int days = month_days[tm->tm_mon] + (tm->tm_mon == 1 && is_leap(tm->tm_year));
    if (tm->tm_mday < 1 || tm->tm_mday > days || tm->tm_hour > 23 || tm->tm_min > 59 || tm->tm_sec > 60) {
        return false;
    }
    struct tm copy = *tm;
    copy.tm_year -= 1900;
    *seconds = timegm(&copy);
    return true;
}

bool http_date_parse(struct str text, int64_t now, int64_t *seconds)
{
    struct tm tm = {0};
    struct str rest = str_trim(text);
    struct str short_day = rest;
    if (take_day_name(&short_day, 3)) {
        if (take(&short_day, ", ")) {
            return parse_fixed(short_day, &tm) && to_seconds(&tm, seconds);
        }
        if (take(&short_day, " ")) {
            return parse_asctime(short_day, &tm) && to_seconds(&tm, seconds);
        }
    }
    if (!take_day_name(&rest, 0) || !take(&rest, ", ") || !parse_rfc850(rest, &tm)) {
        return false;
    }
    struct tm today;
    time_t when = (time_t)now;
    gmtime_r(&when, &today);
    int year = today.tm_year + 1900;
    tm.tm_year += year - year % 100;
    if (tm.tm_year > year + 50) {
        tm.tm_year -= 100;
    }
    return to_seconds(&tm, seconds);
}

/* ---- entity tags ------------------------------------------------------------------------ */

static bool etag_is_weak(struct str tag)
{
    return str_starts(tag, STR("W/"));
}

bool etag_equal(struct str a, struct str b, enum etag_comparison how)
{
    bool a_weak = etag_is_weak(a);
    bool b_weak = etag_is_weak(b);
    if (how == ETAG_STRONG && (a_weak || b_weak)) {
        return false;
    }
    return str_eq(str_from(a, a_weak ? 2 : 0), str_from(b, b_weak ? 2 : 0));
}

/* One entity tag off the front, or an empty str for what is none (skipped up to the next
 * comma). Commas may stand inside of the quotes. False at the end. */
static bool take_etag(struct str *rest, struct str *tag)
{
    while (rest->len > 0 && (rest->ptr[0] == ',' || rest->ptr[0] == ' ' || rest->ptr[0] == '\t')) {
        *rest = str_from(*rest, 1);
    }
    if (rest->len == 0) {
        return false;
    }
    size_t open = etag_is_weak(*rest) ? 2 : 0;
    size_t end = SIZE_MAX;
    if (open < rest->len && rest->ptr[open] == '"') {
        end = str_find(str_from(*rest, open + 1), '"');
    }
    if (end == SIZE_MAX) {
        size_t comma = str_find(*rest, ',');
        *rest = comma == SIZE_MAX ? STR("") : str_from(*rest, comma + 1);
        *tag = STR("");
        return true;
    }
    size_t length = open + 1 + end + 1;
    *tag = str_first(*rest, length);
    *rest = str_from(*rest, length);
    return true;
}

bool etag_list_matches(struct str list, const struct str *tags, size_t count, enum etag_comparison how, size_t *which)
{
    *which = 0;
    list = str_trim(list);
    if (str_eq(list, STR("*"))) {
        return true;
    }
    struct str tag;
    while (take_etag(&list, &tag)) {
        for (size_t i = 0; tag.len > 0 && i < count; i++) {
            if (etag_equal(tag, tags[i], how)) {
                *which = i;
                return true;
            }
        }
    }
    return false;
}

/* ---- preconditions ------------------------------------------------------------------------ */

enum precondition preconditions_check(const struct conditional_fields *fields, const struct validators *validators,
                                      bool is_read, int64_t now, size_t *which)
{
    int64_t date;
    *which = 0;
    if (fields->if_match.ptr != NULL) {
        if (!etag_list_matches(fields->if_match, validators->etags, validators->count, ETAG_STRONG, which)) {
            return PRECONDITION_FAILED;
        }
    } else if (fields->if_unmodified_since.ptr != NULL && http_date_parse(fields->if_unmodified_since, now, &date)) {
        if (validators->modified > date) {
            return PRECONDITION_FAILED;
        }
    }
    if (fields->if_none_match.ptr != NULL) {
        if (etag_list_matches(fields->if_none_match, validators->etags, validators->count, ETAG_WEAK, which)) {
            return is_read ? PRECONDITION_NOT_MODIFIED : PRECONDITION_FAILED;
        }
    } else if (is_read && fields->if_modified_since.ptr != NULL &&
               http_date_parse(fields->if_modified_since, now, &date)) {
        if (validators->modified <= date) {
            return PRECONDITION_NOT_MODIFIED;
        }
    }
    *which = 0;
    return PRECONDITION_PASSED;
}

bool if_range_holds(struct str if_range, struct str etag, int64_t modified, int64_t now)
{
    if_range = str_trim(if_range);
    if (etag_is_weak(if_range) || str_starts(if_range, STR("\""))) {
        return etag_equal(if_range, etag, ETAG_STRONG);
    }
    int64_t date;
    return http_date_parse(if_range, now, &date) && date == modified && modified < now;
}
