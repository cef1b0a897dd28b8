/* Which sanitizer this build has, under one name for gcc and clang: gcc defines
 * __SANITIZE_ADDRESS__ and __SANITIZE_THREAD__, clang answers __has_feature. */
#ifndef KILN_BASE_SANITIZE_H
#define KILN_BASE_SANITIZE_H

#if defined(__SANITIZE_ADDRESS__)
#define KILN_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define KILN_ASAN 1
#endif
#endif

#if defined(__SANITIZE_THREAD__)
#define KILN_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define KILN_TSAN 1
#endif
#endif

/* For functions that look at memory which is not theirs, such as the stack of a crash. */
#define KILN_NO_SANITIZE __attribute__((no_sanitize("address", "thread", "undefined")))

#endif
