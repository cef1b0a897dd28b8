#include "base/format.h"

#include "base/str.h"

enum { NUMBER_MAX = 21 };

/* The value of one integer conversion, `longs` times l; `format` stands on d, i or u. */
static size_t put_integer(char *to, char conversion, unsigned longs, va_list *args)
{
    if (conversion == 'u') {
        unsigned long long value = longs == 0   ? va_arg(*args, unsigned)
                                   : longs == 1 ? va_arg(*args, unsigned long)
                                                : va_arg(*args, unsigned long long);
        return str_put_u64(to, value);
    }
    long long value = longs == 0 ? va_arg(*args, int) : longs == 1 ? va_arg(*args, long) : va_arg(*args, long long);
    if (value >= 0) {
        return str_put_u64(to, (uint64_t)value);
    }
    *to = '-';
    return 1 + str_put_u64(to + 1, 0 - (uint64_t)value);
}

static bool put_text(char **at, const char *end, const char *text, size_t len)
{
    if (len > (size_t)(end - *at)) {
        return false;
    }
    memcpy(*at, text, len);
    *at += len;
    return true;
}

/* One conversion, `*format` behind its '%'. */
static bool put_conversion(char **at, const char *end, const char **format, va_list *args)
{
    unsigned longs = 0;
    while (**format == 'l' || **format == 'z') {
        longs += **format == 'l' ? 1 : 3; /* 3: size_t, which is an unsigned long here */
        (*format)++;
    }
    char conversion = *(*format)++;
    if (conversion == 'd' || conversion == 'i' || conversion == 'u') {
        bool known = longs <= 2 || (longs == 3 && conversion == 'u');
        if (!known || end - *at < NUMBER_MAX) {
            return false;
        }
        *at += put_integer(*at, conversion, longs == 3 ? 1 : longs, args);
        return true;
    }
    if (longs != 0) {
        return false;
    }
    if (conversion == 's') {
        const char *text = va_arg(*args, const char *);
        return text != NULL && put_text(at, end, text, strlen(text));
    }
    if (conversion == 'c') {
        char c = (char)va_arg(*args, int);
        return put_text(at, end, &c, 1);
    }
    return conversion == '%' && put_text(at, end, "%", 1);
}

long format_plain(char *to, size_t room, const char *format, va_list args)
{
    char *at = to;
    const char *end = to + room;
    va_list own;
    va_copy(own, args);
    bool ok = true;
    while (ok && *format != '\0') {
        const char *literal = format;
        format = strchrnul(format, '%');
        ok = put_text(&at, end, literal, (size_t)(format - literal));
        if (ok && *format == '%') {
            format++;
            ok = put_conversion(&at, end, &format, &own);
        }
    }
    va_end(own);
    return ok ? at - to : -1;
}
