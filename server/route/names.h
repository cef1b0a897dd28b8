/* DESIGN: what a file's name says about whether it may be served. Safe by default:
 *  - names that begin with "." are never indexed, except /.well-known of a site;
 *  - an endpoint's source or object (hello._c, hello.so) is run, or hidden when its kind is
 *    switched off, and never sent as bytes;
 *  - every other name that holds such a suffix (index._c~, index._c.bak, index.so.new,
 *    index.php.orig) is a copy an editor or a deployment left behind: hidden. So are
 *    sources of kinds that this server cannot run (.php, ._wasm, ForwardExt's);
 *  - .c, .h and their like (and copies of them) are companions: what endpoints include.
 *    They are hidden in a site that has an endpoint, unless ExtTypes names the extension,
 *    which says that the owner means to publish it. */
#ifndef KILN_ROUTE_NAMES_H
#define KILN_ROUTE_NAMES_H

#include "base/str.h"

struct index_settings;

enum name_class {
    NAME_PLAIN,
    NAME_ENDPOINT, /* runs */
    NAME_SOURCE, /* hidden */
    NAME_COMPANION, /* hidden beside endpoints */
};

enum name_class name_classify(const struct index_settings *settings, struct str name);
/* "hello" for "hello._c" and "hello.so": the length of the short name, 0 for other names. */
size_t name_endpoint_stem(struct str name);
/* Suffixes of endpoints, the one that wins a shared short name first. */
extern const struct str name_endpoint_suffixes[];
enum { NAME_ENDPOINT_SUFFIXES = 2 };

#endif
