# Kiln: `make help` lists the targets.
SHELL := /bin/bash
CC ?= gcc
ifeq ($(origin CC),default)
CC := gcc
endif
CLANG ?= clang
BUILD ?= build
PREFIX ?= /usr/local
DESTDIR ?=
VERSION := 0.1.0
PYTHON ?= /usr/bin/python3

# ---- packages ----------------------------------------------------------------------------
# As root, missing ones are installed; otherwise they are named. Targets name what they need.
LLHTTP_PACKAGE = $(if $(wildcard /usr/share/llhttp/llhttp.c),node-llhttp,$(shell \
	apt-cache show libllhttp-dev >/dev/null 2>&1 && echo libllhttp-dev || echo node-llhttp))
# tcc has the headers and the run-time library that libtcc's code needs, and no package depends on it.
BUILD_PACKAGES = gcc libc6-dev make pkg-config libtcc-dev tcc $(LLHTTP_PACKAGE) libssl-dev libnghttp2-dev libcjson-dev zlib1g-dev \
	libbrotli-dev libzstd-dev liblmdb-dev libdw-dev libseccomp-dev libmicrohttpd-dev
EXAMPLE_PACKAGES := g++ libsqlite3-dev libpq-dev
# With the browser and the database: without them their tests would be skipped.
TEST_PACKAGES := libcmocka-dev python3-websockets python3-websocket node-ws python3-pytest python3-h2 nghttp2-client curl brotli zstd openssl sslscan chromium postgresql $(EXAMPLE_PACKAGES)
BENCH_PACKAGES := libwebsockets-dev liburing-dev node-ws wrk nghttp2-client nginx-core h2o lighttpd python3-matplotlib
DEV_PACKAGES := clang libclang-rt-14-dev llvm clang-tidy clang-format cppcheck

define require
@command -v dpkg-query >/dev/null || exit 0; missing=; \
for p in $(1); do dpkg-query -W -f='$${db:Status-Status}' $$p 2>/dev/null | grep -qx installed || missing="$$missing $$p"; done; \
[ -z "$$missing" ] && exit 0; \
if [ "$$(id -u)" != 0 ]; then echo "These packages are missing; as root: apt-get install$$missing" >&2; exit 1; fi; \
echo "Installing$$missing"; export DEBIAN_FRONTEND=noninteractive; \
apt-get -q -o DPkg::Lock::Timeout=300 update && \
apt-get -q -y -o DPkg::Lock::Timeout=300 install --no-install-recommends $$missing
endef

# Make reads this file first, runs its rule when it is not there, and starts anew: so that what
# is found out below (llhttp as a library or as sources) is found out after the installation.
ifneq ($(filter-out clean help uninstall format,$(or $(MAKECMDGOALS),all)),)
.DEFAULT_GOAL := all
include $(BUILD)/packages.mk
endif
$(BUILD)/packages.mk: Makefile
	$(call require,$(BUILD_PACKAGES))
	@mkdir -p $(@D) && echo '# The packages of the build are there.' > $@

# ---- flags -------------------------------------------------------------------------------
SANITIZE ?=
OPT ?= -O2
OBJCOPY ?= objcopy
ifneq ($(SANITIZE),)
OPT := -O1
SANFLAGS := -fsanitize=$(SANITIZE) -fno-sanitize-recover=all -fno-omit-frame-pointer
FORTIFY :=
else
FORTIFY := -D_FORTIFY_SOURCE=2
endif
CCACHE := $(shell command -v ccache 2>/dev/null)
export CCACHE_BASEDIR := $(CURDIR)
export CCACHE_NOHASHDIR := 1

WARN := -Wall -Wextra -Werror -Wmissing-prototypes -Wshadow -Wconversion
HARDEN := -fPIE -fstack-protector-strong -fstack-clash-protection $(FORTIFY)
INCLUDES := -Iserver -I. -Iplugin-sdk/include -Iplugin-sdk
# llhttp: a library on newer Debian, C sources to compile on Debian 12.
ifneq ($(wildcard /usr/share/llhttp/*.c),)
LLHTTP_SOURCES := $(wildcard /usr/share/llhttp/*.c)
LLHTTP_OBJECTS := $(LLHTTP_SOURCES:/usr/share/llhttp/%.c=$(BUILD)/obj/llhttp/%.o)
ifneq ($(filter x86_64-%,$(shell $(CC) -dumpmachine)),)
# Twice, for the processors that have SSE4.2 and for those that do not: llhttp_dispatch.c.
LLHTTP_OBJECTS += $(BUILD)/obj/llhttp/llhttp_sse42.o
LLHTTP_FLAGS_llhttp := -Dllhttp__internal_execute=llhttp_execute_baseline
LLHTTP_FLAGS_llhttp_sse42 := -msse4.2 -Dllhttp__internal_execute=llhttp_execute_sse42
INCLUDES := $(INCLUDES) -DKILN_LLHTTP_DISPATCH
endif
INCLUDES := $(INCLUDES) -isystem /usr/share/include/llhttp -isystem /usr/share/include
else
LLHTTP_LIBS := -lllhttp
endif
# Libraries are called directly, since all of them are bound at the start anyway. gcc by itself clears and copies structs
# with "rep stos" and "rep movs", which take longer to begin than the C library takes for the whole.
TUNE := -fno-plt
ifneq ($(and $(filter x86_64-%,$(shell $(CC) -dumpmachine)),$(if $(findstring clang,$(CC)),,gcc)),)
STRUCTS := unrolled_loop:64:noalign,libcall:-1:noalign
TUNE += -mmemset-strategy=$(STRUCTS) -mmemcpy-strategy=$(STRUCTS)
endif
# The whole program is optimised as one where it is linked: an eighth fewer instructions for a request.
# Objects hold ordinary code too, for tests. Not where symbols are defined by assembly.
LTO ?= $(if $(or $(SANITIZE),$(findstring clang,$(CC))),,1)
ifneq ($(LTO),)
LTO_COMPILE = $(if $(filter server/loop/coroutine_switch.c server/endpoint/crash.c,$<),,-flto=auto -ffat-lto-objects)
LTO_LINK := -flto=auto $(OPT) $(TUNE)
endif
CFLAGS_ALL := -std=gnu11 -D_GNU_SOURCE -DKILN_VERSION='"$(VERSION)"' $(OPT) $(TUNE) -g $(WARN) $(HARDEN) $(INCLUDES) $(SANFLAGS) $(CFLAGS) -MMD -MP
LIBS := -lcjson -lnghttp2 -lz -lbrotlienc -lbrotlicommon -lzstd -llmdb -lssl -lcrypto -lmicrohttpd -lseccomp -ldw -lelf -lm -lpthread -ldl $(LLHTTP_LIBS)
LINK := $(SANFLAGS) -pie -Wl,-z,relro,-z,now -Wl,--as-needed $(LDFLAGS)

SERVER_SOURCES := $(shell find server sessions plugin-sdk/ws plugin-sdk/wsio -name '*.c' -not -path 'server/tools/*' 2>/dev/null | sort)
LIB_SOURCES := $(filter-out server/main.c,$(SERVER_SOURCES))
LIB_OBJECTS := $(LIB_SOURCES:%.c=$(BUILD)/obj/%.o)
TOOLS := $(patsubst server/tools/%.c,$(BUILD)/kiln-%,$(wildcard server/tools/*.c))
UNIT_SOURCES := $(shell find tests/unit -name 'test_*.c' 2>/dev/null | sort)
UNIT_TESTS := $(UNIT_SOURCES:tests/unit/%.c=$(BUILD)/unit/%)

comma := ,

# `make V=1` shows the commands themselves.
Q := $(if $(V),,@)
say = $(if $(V),,@printf '  %-5s %s\n' $(1) $(2))

# libkilnws: WebSockets for programs of their own. Only its kiln_ws_* are seen from outside.
KILNWS_SO_VERSION := 1
KILNWS_SONAME := libkilnws.so.$(KILNWS_SO_VERSION)
KILNWS_FILE := $(KILNWS_SONAME).0.0
KILNWS_SOURCES := $(sort $(wildcard plugin-sdk/ws/*.c plugin-sdk/wsio/*.c plugin-sdk/kilnws/*.c))
KILNWS_OBJECTS := $(KILNWS_SOURCES:%.c=$(BUILD)/kilnws/%.o)
KILNWS_LIBS := -lssl -lcrypto -lz -lpthread

.PHONY: all
all: $(BUILD)/kiln $(TOOLS) $(BUILD)/libkilnws.a $(BUILD)/libkilnws.so ## the server, its helper programs and libkilnws, in $(BUILD)/ (the default)

$(BUILD)/kilnws/%.o: %.c
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CCACHE) $(CC) -std=gnu11 -D_GNU_SOURCE $(OPT) -g $(WARN) -fPIC -fvisibility=hidden -fstack-protector-strong \
	    $(FORTIFY) -Iplugin-sdk/include -Iplugin-sdk $(SANFLAGS) $(CFLAGS) -MMD -MP -c -o $@ $<

$(BUILD)/$(KILNWS_FILE): $(KILNWS_OBJECTS)
	$(call say,LINK,$@)
	$(Q)$(CC) -shared $(SANFLAGS) -Wl,-soname,$(KILNWS_SONAME) $(if $(SANITIZE),,-Wl$(comma)-z$(comma)defs) -Wl,-z,relro,-z,now \
	    $(LDFLAGS) -o $@ $^ $(KILNWS_LIBS)

$(BUILD)/libkilnws.so: $(BUILD)/$(KILNWS_FILE)
	@ln -sf $(KILNWS_FILE) $(BUILD)/$(KILNWS_SONAME)
	@ln -sf $(KILNWS_SONAME) $@

# One object, whose other names are its own: so nothing in a program collides with them.
$(BUILD)/libkilnws.a: $(KILNWS_OBJECTS)
	$(call say,AR,$@)
	@rm -f $@
	$(Q)$(CC) -r -nostdlib -o $(BUILD)/kilnws/libkilnws.o $^
	$(Q)$(OBJCOPY) --wildcard --keep-global-symbol='kiln_ws_*' $(BUILD)/kilnws/libkilnws.o
	$(Q)$(AR) rcs $@ $(BUILD)/kilnws/libkilnws.o

$(BUILD)/kiln: $(BUILD)/obj/server/main.o $(LIB_OBJECTS) $(LLHTTP_OBJECTS)
	$(call say,LINK,$@)
	$(Q)$(CC) $(LTO_LINK) $(LINK) -Wl,--dynamic-list=plugin-sdk/exports.list -o $@ $^ $(LIBS)

# What tests and fuzz targets link: of it they take what they need.
$(BUILD)/libkiln.a: $(LIB_OBJECTS) $(LLHTTP_OBJECTS)
	$(call say,AR,$@)
	@rm -f $@
	$(Q)$(AR) rcs $@ $^

$(BUILD)/obj/llhttp/%.o: /usr/share/llhttp/%.c Makefile
	@mkdir -p $(@D)
	$(call say,CC,$@)
	$(Q)$(CCACHE) $(CC) -O3 -g -fPIE -DLLHTTP_STRICT_MODE=1 $(LLHTTP_FLAGS_$*) $(SANFLAGS) -isystem /usr/share/include/llhttp -isystem /usr/share/include -c -o $@ $<

$(BUILD)/obj/llhttp/llhttp_sse42.o: /usr/share/llhttp/llhttp.c Makefile
	@mkdir -p $(@D)
	$(call say,CC,$@)
	$(Q)$(CCACHE) $(CC) -O3 -g -fPIE -DLLHTTP_STRICT_MODE=1 $(LLHTTP_FLAGS_llhttp_sse42) $(SANFLAGS) -isystem /usr/share/include/llhttp -isystem /usr/share/include -c -o $@ $<
	@$(OBJCOPY) --keep-global-symbol=llhttp_execute_sse42 $@

$(BUILD)/obj/%.o: %.c
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CCACHE) $(CC) $(CFLAGS_ALL) $(LTO_COMPILE) -c -o $@ $<

# Helper programs: own main, only what they name.
$(BUILD)/kiln-%: server/tools/%.c
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(CC) $(CFLAGS_ALL) $(LINK) -o $@ $< $(TOOL_LIBS_$*)

# kiln-ws is `kiln ws`: a program of libkilnws as anybody could write it.
$(BUILD)/kiln-ws: server/tools/ws.c $(wildcard server/tools/ws/*.c server/tools/ws/*.h) plugin-sdk/include/kiln_ws.h $(BUILD)/libkilnws.a
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(CC) $(CFLAGS_ALL) -Iserver/tools $(LINK) -o $@ $(filter %.c,$^) $(BUILD)/libkilnws.a $(KILNWS_LIBS)

# kiln-cc starts for every build: static, because a dynamic program starts 1 to 2 ms later; without
# sanitizers, because it runs under a limit of address space; every file that libtcc opens passes
# server/tools/cc/files.c.
CC_WRAP := -Wl,--wrap=open,--wrap=read,--wrap=lseek,--wrap=close,--wrap=dlopen,--wrap=tcc_set_options
$(BUILD)/kiln-cc: server/tools/cc.c $(wildcard server/tools/cc/*.c server/tools/cc/*.h)
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(CC) -std=gnu11 -D_GNU_SOURCE -DKILN_VERSION='"$(VERSION)"' -O2 -g $(WARN) -fstack-protector-strong \
		-D_FORTIFY_SOURCE=2 -Iserver/tools -static $(CC_WRAP) -o $@ $(filter %.c,$^) -ltcc

# kiln-try loads modules, which have no sanitizers, and has a function of every name in the SDK.
$(BUILD)/try/sdk_functions.def: plugin-sdk/exports.list
	@mkdir -p $(@D)
	@awk '$$1 ~ /^kiln_/ {sub(";", "", $$1); print "SDK_FUNCTION(" $$1 ")"}' $< > $@
$(BUILD)/kiln-try: server/tools/try.c $(BUILD)/try/sdk_functions.def
	$(call say,LINK,$@)
	$(Q)$(CC) -std=gnu11 -D_GNU_SOURCE -O2 -g $(WARN) $(HARDEN) -I$(BUILD)/try -pie -rdynamic -o $@ $< -ldl

$(BUILD)/unit/%: tests/unit/%.c $(BUILD)/libkiln.a
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(CC) $(CFLAGS_ALL) -Wno-missing-prototypes $(LINK) -Wl,--dynamic-list=plugin-sdk/exports.list \
	    -fno-lto $(WRAP_$(*F)) -o $@ $< $(BUILD)/libkiln.a $(LIBS) -lcmocka -lbrotlidec

# Programs of libkilnws: with it alone.
$(BUILD)/unit/kilnws/%: tests/unit/kilnws/%.c $(BUILD)/libkilnws.a
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(CC) $(CFLAGS_ALL) -Wno-missing-prototypes $(LINK) -o $@ $< $(BUILD)/libkilnws.a $(KILNWS_LIBS) -lcmocka

# What a test puts in the place of the server's own function: calls of __wrap_NAME instead. Without
# link-time optimisation, which inlines the call before the linker could send it there.
WRAP_test_http1 := -Wl,--wrap=request_start
WRAP_test_http1_time := -Wl,--wrap=request_start
WRAP_test_http1_body := -Wl,--wrap=request_start
WRAP_test_response := -Wl,--wrap=request_start
WRAP_fuzz_http1 := -Wl,--wrap=request_start
WRAP_fuzz_http2 := -Wl,--wrap=request_start
WRAP_test_http2 := -Wl,--wrap=request_start
WRAP_test_output := -Wl,--wrap=malloc
WRAP_test_watchdog := -Wl,--wrap=endpoint_file,--wrap=worker_replace
WRAP_test_upgrade := -Wl,--wrap=program_path,--wrap=program_arguments,--wrap=supervisor_shut_down,--wrap=notify_send

# ---- examples: the endpoints that are built, beside their sources (git ignores them) ----------------
# A finished file is moved into place, so that a running server never sees half of one.
ENDPOINT_FLAGS := -O2 -g -fPIC -shared -Wall -Wextra -Werror -Wl,-Bsymbolic -Iplugin-sdk/include
NATIVE_EXAMPLES := $(patsubst %,examples/%/native.so,hello counter redirect redirect-body my-ip)
RUSTC ?= $(shell command -v rustc 2>/dev/null)

.PHONY: examples
examples: $(NATIVE_EXAMPLES) examples/cplusplus/index.so $(if $(RUSTC),examples/rust/index.so,rust-is-missing) ## the compiled example endpoints

.PHONY: rust-is-missing
rust-is-missing:
	@echo "examples/rust: not built, there is no rustc (apt-get install rustc)"

examples/%/native.so: examples/%/index._c plugin-sdk/include/kiln.h
	$(CC) -x c -std=gnu11 $(ENDPOINT_FLAGS) -o $@.new $< && mv $@.new $@

examples/cplusplus/index.so: examples/cplusplus/index.cpp plugin-sdk/include/kiln.h
	$(CXX) -std=c++11 $(ENDPOINT_FLAGS) -o $@.new $< && mv $@.new $@

examples/rust/index.so: examples/rust/index.rs
	$(RUSTC) -O --crate-type cdylib -C panic=abort -C strip=debuginfo -o $@.new $< && mv $@.new $@

-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)

# ---- running -----------------------------------------------------------------------------
PORT ?= 8080
TLS_PORT ?= 8443
DIR ?= examples
ADMIN ?= 127.0.0.1:9180

.PHONY: run
run: ## serve examples/ on http://localhost:8080 and https://localhost:8443 (DIR=..., PORT=..., TLS_PORT=..., ADMIN=127.0.0.1:9180)
	$(call require,$(EXAMPLE_PACKAGES))
	@$(MAKE) --no-print-directory all examples
	@echo "http://localhost:$(PORT)/ and https://localhost:$(TLS_PORT)/ serve $(DIR); Ctrl-C ends it"
	@exec $(BUILD)/kiln --httpPort=$(PORT) --httpsPort=$(TLS_PORT) --certPath=$(BUILD)/certs --AdminListen=$(ADMIN) --AdminListenOptional --DebugPages $(DIR)

# ---- tests -------------------------------------------------------------------------------
.PHONY: test
test: ## unit and flow tests
	$(call require,$(TEST_PACKAGES))
	@$(MAKE) --no-print-directory unit
	@$(MAKE) --no-print-directory flow

.PHONY: unit
unit: $(UNIT_TESTS) $(TOOLS) ## unit tests (cmocka)
	@failed=; for t in $(UNIT_TESTS); do \
	    if KILN_SDK_INCLUDE=$(CURDIR)/plugin-sdk/include $$t > $$t.log 2>&1; then echo "$$t: $$(grep -c '  OK ' $$t.log) passed"; \
	    else failed="$$failed $$t"; echo "== $$t"; cat $$t.log; fi; \
	done; \
	[ -z "$$failed" ] || { echo "FAILED:$$failed" >&2; exit 1; }

.PHONY: flow
flow: all $(BUILD)/chaos-load ## flow tests against a running server (pytest; FLOW="-k name" chooses)
	@$(PYTHON) tests/flow.py $(BUILD) $(FLOW)

# The load of tests/chaos. Nothing of the server is in it, and no sanitizer: it is to be quick.
$(BUILD)/chaos-load: $(wildcard tests/support/load/*.c tests/support/load/*.h)
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(CC) -std=gnu11 -D_GNU_SOURCE -O2 -g $(WARN) -o $@ $(filter %.c,$^)

SECONDS ?= 600

.PHONY: soak
soak: all $(BUILD)/chaos-load ## the chaos tests, each for SECONDS=600, and all disturbances at once
	$(call require,$(TEST_PACKAGES))
	KILN_BUILD=$(BUILD) KILN_SOAK_SECONDS=$(SECONDS) $(PYTHON) -m pytest -q tests/chaos $(SOAK)

# A sanitized server is slow; a condition that comes true is waited for no longer than it takes.
test-asan test-tsan: export KILN_TEST_PATIENCE ?= 90

.PHONY: test-asan
test-asan: ## the same under AddressSanitizer and UndefinedBehaviorSanitizer
	$(call require,$(TEST_PACKAGES))
	@$(MAKE) --no-print-directory SANITIZE=address,undefined BUILD=build/asan unit
	@$(MAKE) --no-print-directory SANITIZE=address,undefined BUILD=build/asan flow

.PHONY: test-tsan
test-tsan: ## the same under ThreadSanitizer
	$(call require,$(TEST_PACKAGES))
	@$(MAKE) --no-print-directory SANITIZE=thread BUILD=build/tsan unit
	@$(MAKE) --no-print-directory SANITIZE=thread BUILD=build/tsan flow

# ---- fuzzing: tests/fuzz/fuzz_NAME.c, seeds in tests/fuzz/corpus/NAME/ ----------------------
FUZZ_SECONDS ?= 30
FUZZ_NAMES := $(patsubst tests/fuzz/fuzz_%.c,%,$(wildcard tests/fuzz/fuzz_*.c))
FUZZ ?= $(FUZZ_NAMES)

.PHONY: fuzz
fuzz: ## each fuzz target for FUZZ_SECONDS=30 (FUZZ="config cookie" chooses; 0 runs the seeds alone)
	$(call require,clang libclang-rt-14-dev)
	@$(MAKE) --no-print-directory CC=$(CLANG) SANITIZE=fuzzer-no-link,address,undefined BUILD=build/fuzz fuzz-run

.PHONY: fuzz-run
fuzz-run: $(FUZZ:%=$(BUILD)/fuzz_%)
	@failed=; for name in $(FUZZ); do \
	    mkdir -p $(BUILD)/corpus/$$name tests/fuzz/corpus/$$name; \
	    $(BUILD)/fuzz_$$name -timeout=10 -rss_limit_mb=2048 -artifact_prefix=$(BUILD)/found-$$name- -print_final_stats=1 \
	        -verbosity=0 $$([ $(FUZZ_SECONDS) = 0 ] && echo -runs=0 || echo -max_total_time=$(FUZZ_SECONDS)) \
	        $(BUILD)/corpus/$$name tests/fuzz/corpus/$$name > $(BUILD)/fuzz_$$name.log 2>&1 && \
	    echo "fuzz_$$name: $$(sed -n 's/^stat::number_of_executed_units: //p' $(BUILD)/fuzz_$$name.log) runs" || \
	    { failed="$$failed $$name"; echo "== fuzz_$$name"; tail -40 $(BUILD)/fuzz_$$name.log; }; \
	done; [ -z "$$failed" ] || { echo "FAILED:$$failed; the inputs are $(BUILD)/found-*" >&2; exit 1; }

$(BUILD)/fuzz_%: tests/fuzz/fuzz_%.c $(BUILD)/libkiln.a
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(CC) $(CFLAGS_ALL) -fsanitize=fuzzer $(LINK) $(WRAP_$(@F)) -o $@ $< $(BUILD)/libkiln.a $(LIBS)

# ---- figures -------------------------------------------------------------------------------
BENCH ?=

.PHONY: bench
bench: all ## figures beside nginx, h2o and lighttpd, into bench/results/ (BENCH="--quick --only hello")
	$(call require,$(BENCH_PACKAGES))
	$(PYTHON) bench/run.py --build $(BUILD) $(BENCH)

.PHONY: bench-websocket
bench-websocket: all ## WebSocket figures beside libwebsockets and node's ws (BENCH="--quick --only 20,wss")
	$(call require,$(BENCH_PACKAGES))
	$(PYTHON) bench/websocket.py --build $(BUILD) $(BENCH)

# ---- looking at the sources ------------------------------------------------------------------
LINT_SOURCES := $(SERVER_SOURCES) $(wildcard plugin-sdk/kilnws/*.c) $(wildcard server/tools/*.c server/tools/*/*.c)
FORMAT_SOURCES = $(shell git ls-files 'server/**.[ch]' 'sessions/**.[ch]' 'plugin-sdk/**.[ch]' 'tests/**.[ch]')

.PHONY: lint
lint: lint-format lint-cppcheck lint-tidy ## clang-format, cppcheck and clang-tidy, all without a complaint

.PHONY: lint-format
lint-format:
	$(call require,clang-format)
	@clang-format --dry-run --Werror $(sort $(FORMAT_SOURCES))

.PHONY: lint-cppcheck
lint-cppcheck:
	$(call require,cppcheck)
	@cppcheck --quiet --error-exitcode=1 --std=c11 --enable=warning,performance,portability --inline-suppr \
	    --suppress=missingIncludeSystem --suppress=internalAstError --suppress=preprocessorErrorDirective \
	    --suppress=missingReturn --suppress=autoVariables --suppress=memleak:server/base/map.c \
	    -D_GNU_SOURCE -D__linux__ -DKILN_VERSION='""' -j2 -Iserver -I. -Iplugin-sdk/include $(sort $(LINT_SOURCES))

.PHONY: lint-tidy
lint-tidy: $(sort $(LINT_SOURCES:%.c=$(BUILD)/tidy/%.ok))

$(BUILD)/tidy/%.ok: %.c .clang-tidy | $(BUILD)/try/sdk_functions.def
	$(call require,clang-tidy)
	@mkdir -p $(@D)
	@clang-tidy --quiet $< -- -std=gnu11 -D_GNU_SOURCE -DKILN_VERSION='""' $(INCLUDES) -Iserver/tools -I$(BUILD)/try 2> $@.log || { cat $@.log >&2; exit 1; }
	@touch $@

.PHONY: format
format: ## rewrite the sources as clang-format has them
	$(call require,clang-format)
	clang-format -i $(sort $(FORMAT_SOURCES))

# ---- manual pages and installation -----------------------------------------------------------
MAN_PAGES := $(BUILD)/man/kiln.1 $(BUILD)/man/kiln-ws.1 $(BUILD)/man/kiln_ws.h.3 $(BUILD)/man/kiln.json.5 $(BUILD)/man/kiln.h.3
INSTALL ?= install

.PHONY: man
man: $(MAN_PAGES) ## manual pages in $(BUILD)/man/

$(BUILD)/man/kiln.1: server/man/kiln.1.in Makefile
	@mkdir -p $(@D)
	sed 's/@VERSION@/$(VERSION)/g' $< > $@

# What --help says, as a page: the lines as they are.
$(BUILD)/man/kiln-ws.1: server/man/kiln-ws.1.in $(BUILD)/kiln-ws Makefile
	@mkdir -p $(@D)
	$(BUILD)/kiln-ws --help | sed -e 1,2d -e 's/\\/\\e/g' -e 's/-/\\-/g' -e "s/^[.']/\\\\\&&/" > $(BUILD)/kiln-ws.help
	sed -e 's/@VERSION@/$(VERSION)/g' -e '/^@HELP@$$/{r $(BUILD)/kiln-ws.help' -e 'd}' $< > $@

$(BUILD)/man/kiln_ws.h.3: plugin-sdk/include/kiln_ws.h server/man/header_to_man.awk Makefile
	@mkdir -p $(@D)
	awk -v version='$(VERSION)' -v header=kiln_ws.h -v about='WebSockets for programs of their own' \
	    -v build='cc program.c $$(pkg-config --cflags --libs kilnws)' -f server/man/header_to_man.awk $< > $@

$(BUILD)/man/kiln.json.5: server/man/kiln.json.5.in $(BUILD)/kiln Makefile
	@mkdir -p $(@D)
	$(BUILD)/kiln config --man > $(BUILD)/kiln.json.options
	sed -e 's/@VERSION@/$(VERSION)/g' -e '/^@OPTIONS@$$/{r $(BUILD)/kiln.json.options' -e 'd}' $< > $@

$(BUILD)/man/kiln.h.3: plugin-sdk/include/kiln.h server/man/header_to_man.awk Makefile
	@mkdir -p $(@D)
	awk -v version='$(VERSION)' -v header=kiln.h -v about='SDK for endpoints of the Kiln application server' \
	    -v build='cc -shared -fPIC $$(pkg-config --cflags kiln) -o name.so name.c' -f server/man/header_to_man.awk $< > $@

.PHONY: install
install: all man ## into $(DESTDIR)$(PREFIX)
	$(INSTALL) -d $(addprefix $(DESTDIR)$(PREFIX)/,bin libexec/kiln include lib/pkgconfig lib/systemd/system share/doc/kiln \
	    share/man/man1 share/man/man3 share/man/man5)
	$(INSTALL) -m 755 $(BUILD)/kiln $(DESTDIR)$(PREFIX)/bin/kiln
	$(if $(TOOLS),$(INSTALL) -m 755 $(TOOLS) $(DESTDIR)$(PREFIX)/libexec/kiln/)
	$(INSTALL) -m 644 $(wildcard plugin-sdk/include/*.h) $(DESTDIR)$(PREFIX)/include/
	$(INSTALL) -m 755 $(BUILD)/$(KILNWS_FILE) $(DESTDIR)$(PREFIX)/lib/
	ln -sf $(KILNWS_FILE) $(DESTDIR)$(PREFIX)/lib/$(KILNWS_SONAME)
	ln -sf $(KILNWS_SONAME) $(DESTDIR)$(PREFIX)/lib/libkilnws.so
	$(INSTALL) -m 644 $(BUILD)/libkilnws.a $(DESTDIR)$(PREFIX)/lib/
	sed -e 's|@PREFIX@|$(PREFIX)|g' -e 's|@VERSION@|$(KILNWS_SO_VERSION).0.0|g' plugin-sdk/kilnws.pc.in > $(DESTDIR)$(PREFIX)/lib/pkgconfig/kilnws.pc
	sed -e 's|@PREFIX@|$(PREFIX)|g' -e 's|@VERSION@|$(VERSION)|g' plugin-sdk/kiln.pc.in > $(DESTDIR)$(PREFIX)/lib/pkgconfig/kiln.pc
	sed -e 's|@PREFIX@|$(PREFIX)|g' server/supervisor/kiln.service > $(DESTDIR)$(PREFIX)/lib/systemd/system/kiln.service
	$(INSTALL) -m 644 $(BUILD)/man/kiln.1 $(DESTDIR)$(PREFIX)/share/man/man1/
	$(INSTALL) -m 644 $(BUILD)/man/kiln-ws.1 $(DESTDIR)$(PREFIX)/share/man/man1/
	$(INSTALL) -m 644 $(BUILD)/man/kiln_ws.h.3 $(DESTDIR)$(PREFIX)/share/man/man3/
	$(INSTALL) -m 644 $(BUILD)/man/kiln.h.3 $(DESTDIR)$(PREFIX)/share/man/man3/
	$(INSTALL) -m 644 $(BUILD)/man/kiln.json.5 $(DESTDIR)$(PREFIX)/share/man/man5/
	$(INSTALL) -m 644 LICENSE $(wildcard README.md) $(DESTDIR)$(PREFIX)/share/doc/kiln/
	$(BUILD)/kiln config --defaults > $(DESTDIR)$(PREFIX)/share/doc/kiln/kiln.json.example
	tar -cf - --exclude='*.so' --exclude='.*.db*' examples | tar -xf - --no-same-owner -C $(DESTDIR)$(PREFIX)/share/doc/kiln/

.PHONY: uninstall
uninstall: ## take away what install put there
	rm -f $(addprefix $(DESTDIR)$(PREFIX)/,bin/kiln lib/pkgconfig/kiln.pc lib/pkgconfig/kilnws.pc lib/libkilnws.a lib/libkilnws.so lib/$(KILNWS_SONAME) \
	    lib/$(KILNWS_FILE) lib/systemd/system/kiln.service \
	    share/man/man1/kiln.1 share/man/man1/kiln-ws.1 share/man/man3/kiln.h.3 share/man/man3/kiln_ws.h.3 \
	    share/man/man5/kiln.json.5 $(patsubst plugin-sdk/%,%,$(wildcard plugin-sdk/include/*.h)))
	rm -rf $(addprefix $(DESTDIR)$(PREFIX)/,libexec/kiln share/doc/kiln)

.PHONY: clean
clean: ## remove build/ and the compiled examples
	rm -rf $(BUILD) examples/*/*.so

.PHONY: help
help: ## this list
	@echo "make TARGET, with:"
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  %-12s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST)) | sed 's/\$$(BUILD)/build/g; s/\$$(DESTDIR)\$$(PREFIX)/PREFIX (\/usr\/local), below DESTDIR/'
