#include "answer/accept.h"

/* Thousandths; a malformed weight counts as 0. */
static int weight_of(struct str parameters)
{
    struct str parameter;
    while (str_split_next(&parameters, ';', &parameter)) {
        if (parameter.len < 3 || ascii_lower(parameter.ptr[0]) != 'q' || parameter.ptr[1] != '=') {
            continue;
        }
        int weight = 0;
        int unit = 1000;
        for (size_t i = 2; i < parameter.len && unit > 0; i++) {
            char c = parameter.ptr[i];
            if (i == 3 && c == '.') {
                continue;
            }
            if (!ascii_is_digit(c)) {
                return 0;
            }
            weight += (c - '0') * unit;
            unit /= 10;
        }
        return weight < 1000 ? weight : 1000;
    }
    return 1000;
}

enum page_type page_type_preferred(struct str accept)
{
    static const struct {
        struct str range;
        enum page_type type;
        int precision;
    } ranges[] = {
        {STR("text/html"), PAGE_HTML, 3},
        {STR("application/xhtml+xml"), PAGE_HTML, 3},
        {STR("application/json"), PAGE_JSON, 3},
        {STR("text/plain"), PAGE_TEXT, 3},
        {STR("text/*"), PAGE_HTML, 2},
        {STR("text/*"), PAGE_TEXT, 2},
        {STR("application/*"), PAGE_JSON, 2},
        {STR("*/*"), PAGE_HTML, 1},
        {STR("*/*"), PAGE_JSON, 1},
        {STR("*/*"), PAGE_TEXT, 1},
    };
    int weights[3] = {0, 0, 0};
    int precision[3] = {0, 0, 0};
    struct str element;
    while (str_split_next(&accept, ',', &element)) {
        size_t end = str_find(element, ';');
        struct str range = end == SIZE_MAX ? element : str_trim(str_first(element, end));
        int weight = end == SIZE_MAX ? 1000 : weight_of(str_from(element, end + 1));
        for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++) {
            enum page_type type = ranges[i].type;
            if (str_eq_nocase(range, ranges[i].range) && ranges[i].precision >= precision[type]) {
                weights[type] =
                    ranges[i].precision > precision[type] || weight > weights[type] ? weight : weights[type];
                precision[type] = ranges[i].precision;
            }
        }
    }
    if (weights[PAGE_JSON] > weights[PAGE_HTML] && weights[PAGE_JSON] >= weights[PAGE_TEXT]) {
        return PAGE_JSON;
    }
    return weights[PAGE_TEXT] > weights[PAGE_HTML] ? PAGE_TEXT : PAGE_HTML;
}
