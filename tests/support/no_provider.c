/* An OpenSSL that has no use for the server's key derivation, for LD_PRELOAD: NO_PROVIDER=load does not load it,
 * NO_PROVIDER=fetch never asks for it. */
#include <dlfcn.h>
#include <openssl/kdf.h>
#include <openssl/provider.h>
#include <stdlib.h>
#include <string.h>

static int wants(const char *what)
{
    const char *mode = getenv("NO_PROVIDER");
    return mode != NULL && strcmp(mode, what) == 0;
}

OSSL_PROVIDER *OSSL_PROVIDER_try_load(OSSL_LIB_CTX *ctx, const char *name, int retain)
{
    OSSL_PROVIDER *(*real)(OSSL_LIB_CTX *, const char *, int) = dlsym(RTLD_NEXT, "OSSL_PROVIDER_try_load");
    return wants("load") && strcmp(name, "kiln") == 0 ? NULL : real(ctx, name, retain);
}

EVP_KDF *EVP_KDF_fetch(OSSL_LIB_CTX *ctx, const char *algorithm, const char *properties)
{
    EVP_KDF *(*real)(OSSL_LIB_CTX *, const char *, const char *) = dlsym(RTLD_NEXT, "EVP_KDF_fetch");
    return real(ctx, algorithm, wants("fetch") && properties != NULL ? "provider=default" : properties);
}
