# Nightshift: build, test, install. `make help` lists the targets.
#
# What is built stands here, and how the compiler is called; all else in mk/*.mk. Objects come
# from the folders: a new file is built without a word here. Each layer sees the headers of
# those below it, and of no other: so a forbidden include does not compile.

CC      ?= cc
AWK     ?= awk
LUA     ?= lua5.4
O       ?= build
PREFIX  ?= /usr/local
BINDIR  ?= $(PREFIX)/bin
LUADIR  ?= $(PREFIX)/share/lua/5.4
LIBDIR  ?= $(PREFIX)/lib/lua/5.4
INCDIR  ?= $(PREFIX)/include
CLIBDIR ?= $(PREFIX)/lib
MANDIR  ?= $(PREFIX)/share/man
UNITDIR ?= $(PREFIX)/lib/systemd/system
BASHDIR ?= $(PREFIX)/share/bash-completion/completions
ZSHDIR  ?= $(PREFIX)/share/zsh/site-functions
FISHDIR ?= $(PREFIX)/share/fish/vendor_completions.d

# Builds that come before something else: as many compilers at once as there are processors.
PARALLEL := $(MAKE) --no-print-directory -j$(shell nproc 2>/dev/null || echo 2)

#: make [all]       build program and module into build/
.PHONY: all
all:

# ------------------------------------------------- compiler, linker, libraries

WARN   := -Wall -Wextra -Wshadow -Wformat=2 -Wstrict-prototypes \
          -Wmissing-prototypes -Wconversion -Wvla -Werror=format-security
# -fcf-protection is x86's; where another compiler sets FORTIFY itself, ours counts.
HARDEN := -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3 -fstack-protector-strong \
          -fstack-clash-protection \
          $(if $(filter x86_64% i686%,$(shell $(CC) -dumpmachine 2>/dev/null)),-fcf-protection=full)
PKG    := $(shell command -v pkg-config 2>/dev/null || echo false)
# Asked once, by the first rule that wants them.
once = $(eval $(1) := $$(shell $(2) 2>/dev/null))$($(1))
MARIADB_CFLAGS ?= $(call once,MARIADB_CFLAGS,$(PKG) --cflags libmariadb)
MARIADB_LIBS   ?= $(call once,MARIADB_LIBS,$(PKG) --libs libmariadb)
LUA_CFLAGS     ?= $(call once,LUA_CFLAGS,$(PKG) --cflags lua5.4)
LUA_LIBS       ?= $(call once,LUA_LIBS,$(PKG) --libs lua5.4)
JANSSON_LIBS   ?= $(call once,JANSSON_LIBS,$(PKG) --libs jansson)
UV_LIBS        ?= $(call once,UV_LIBS,$(PKG) --libs libuv)
# For `work --http`; where it is missing the program is built without that.
MHD_LIBS       ?= $(call once,MHD_LIBS,$(PKG) --libs libmicrohttpd)
# For `top`; the same.
CURSES_LIBS    ?= $(call once,CURSES_LIBS,$(PKG) --libs ncursesw)

# `make DEBUG=1` builds with asserts, tiny first buffers and little optimisation;
# SAN=address,undefined (or thread) adds sanitizers. Each has its own folder:
# O=build/asan make SAN=address,undefined
ifdef DEBUG
OPT := -Og -g -DNS_DEBUG -fno-omit-frame-pointer
else
OPT := -O2 -g
endif
ifdef SAN
OPT := -O1 -g -DNS_DEBUG -fno-omit-frame-pointer -fsanitize=$(SAN) \
       -fno-sanitize-recover=all
HARDEN :=
endif

CPPFLAGS += -D_GNU_SOURCE
CFLAGS   ?= $(OPT)
PIC      := -fPIC
NS_CFLAGS = -std=c11 $(CFLAGS) $(WARN) $(HARDEN) $(PIC) -fvisibility=hidden \
            -pthread -MMD -MP
LDFLAGS  += $(if $(SAN),-fsanitize=$(SAN)) -Wl,-z,relro,-z,now,-z,noexecstack -pthread

# `make V=1` shows the commands.
ifdef V
SAY := @:
Q :=
else
SAY := @printf '  %-5s %s\n'
Q := @
endif

# ----------------------------------------------------------------- layers

objects = $(patsubst src/%.c,$(O)/%.o,$(sort $(wildcard src/$(1)/*.c src/$(1)/*/*.c)))

BASE_O := $(call objects,base)
PRIV_O := $(call objects,private)
CORE_O := $(call objects,core) $(O)/gen/ns_sql.o
LUAC_O := $(call objects,lua)
HOST_O := $(filter-out $(O)/host/screen.o $(O)/host/http/library.o,$(call objects,host))

$(O)/base/%.o: SEES = -Isrc/include -Isrc/base
$(O)/core/%.o: SEES = -Isrc/include -Isrc/base -Isrc/core -I$(O)/gen $(MARIADB_CFLAGS)
$(O)/gen/%.o:  SEES = -Isrc/include -Isrc/base -Isrc/core -I$(O)/gen
$(O)/private/%.o: SEES = -Isrc/include -Isrc/base -Isrc/core -Isrc/private
$(O)/lua/%.o:  SEES = -Isrc/include -Isrc/base -Isrc/private -Isrc/lua $(LUA_CFLAGS)
$(O)/host/%.o: SEES = -Isrc/include -Isrc/base -Isrc/core -Isrc/host \
  $(if $(filter $(SPEAKS_LUA),$@),-Isrc/lua $(LUA_CFLAGS))
SPEAKS_LUA := $(addprefix $(O)/host/,main.o web.o config.o runners.o schedules.o figures.o screen.o http/library.o \
  process/zygote.o worker/%.o)
# Only the program has these: position independent, but no library; but for what it loads late.
$(O)/host/%.o: PIC := -fPIE
$(O)/host/screen.o $(O)/host/http/library.o: PIC := -fPIC
# Tests and benches see all.
ALL_SEE = -Isrc/include -Isrc/base -Isrc/core -Isrc/private -Isrc/lua -Isrc/host -I$(O)/gen

$(O)/%.o: src/%.c | $(O)/gen/ns_sql_names.h
	@mkdir -p $(@D)
	$(SAY) CC $@
	$(Q)$(CC) $(CPPFLAGS) $(SEES) $(NS_CFLAGS) -c -o $@ $<

$(O)/%.o: $(O)/%.c
	$(SAY) CC $@
	$(Q)$(CC) $(CPPFLAGS) $(SEES) $(NS_CFLAGS) -c -o $@ $<

-include $(wildcard $(O)/*/*.d $(O)/*/*/*.d)

# -------------------------------------------------------------------- SQL

SQL := sql/marks.sql $(sort $(wildcard sql/schema/*.sql)) $(sort $(wildcard sql/query/*.sql))

$(O)/gen/ns_sql_names.h: PART = header
$(O)/gen/ns_sql.c: PART = source
$(O)/gen/ns_sql.c: $(O)/gen/ns_sql_names.h
$(O)/gen/ns_sql_names.h $(O)/gen/ns_sql.c: sql/embed.awk $(SQL)
	@mkdir -p $(@D)
	$(SAY) SQL $@
	$(Q)$(AWK) -v part=$(PART) -f sql/embed.awk $(SQL) > $@.tmp && mv $@.tmp $@

# --------------------------------------------------------------- products

MODULE  := $(O)/nightshift/core.so
PROGRAM := $(O)/bin/nightshift
LIBRARY := $(O)/libnightshift.a
# Of the program; for `top` alone, so that nothing else loads ncurses. Without that it is not built.
SCREEN  := $(if $(CURSES_LIBS),$(O)/nightshift/host/screen.so)
# The same for what listens: libmicrohttpd loads a dozen libraries.
HTTP    := $(if $(MHD_LIBS),$(O)/nightshift/host/http.so)

all: $(MODULE) $(PROGRAM) $(LIBRARY) $(SCREEN) $(HTTP)

$(LIBRARY): $(BASE_O) $(CORE_O)
	$(SAY) AR $@
	$(Q)rm -f $@ && ar rcs $@ $^

# nodelete: lua_close must not unload libmariadb, whose globals and thread
# destructors outlive a Lua state.
$(MODULE): $(LUAC_O) $(PRIV_O) $(LIBRARY)
	@mkdir -p $(@D)
	$(SAY) LINK $@
	$(Q)$(CC) -shared -Wl,-z,nodelete $(LDFLAGS) -o $@ $^ $(MARIADB_LIBS) $(JANSSON_LIBS)

$(PROGRAM): $(HOST_O) $(LUAC_O) $(PRIV_O) $(LIBRARY)
	@mkdir -p $(@D)
	$(SAY) LINK $@
	$(Q)$(CC) $(LDFLAGS) -pie -rdynamic -o $@ $^ $(MARIADB_LIBS) $(JANSSON_LIBS) $(UV_LIBS) \
	  $(LUA_LIBS) -lm

# nodelete: handlers of signals that ncurses leaves behind.
$(O)/nightshift/host/screen.so: $(O)/host/screen.o
	@mkdir -p $(@D)
	$(SAY) LINK $@
	$(Q)$(CC) -shared -Wl,-z,nodelete $(LDFLAGS) -o $@ $^ $(CURSES_LIBS) -lm

$(O)/nightshift/host/http.so: $(O)/host/http/library.o
	@mkdir -p $(@D)
	$(SAY) LINK $@
	$(Q)$(CC) -shared -Wl,-z,nodelete $(LDFLAGS) -o $@ $^ $(MHD_LIBS)

# ------------------------------------------------------------------- try

# Packs every sub-folder of DIR; see examples/archive. The build is a make of
# its own because `deps` may just have installed what the flags ask for.
DIR ?= /usr/share
#: make demo        archive the sub-folders of DIR=/usr/share into build/demo
.PHONY: demo
demo: export DIR := $(DIR)
demo: deps
	@$(MAKE) $(if $(V),,-s) --no-print-directory all
	@O="$(O)" LUA="$(LUA)" sh examples/archive/demo.sh

#: make deps        install the Debian packages that are missing
.PHONY: deps
deps:
	@sh .ci/deps

#: make clean       remove build/
.PHONY: clean
clean:
	rm -rf build

include mk/install.mk mk/test.mk mk/check.mk

# The lines of these files that begin with "#:".
.PHONY: help
help:
	@sed -n 's/^#: //p' Makefile $(filter mk/%,$(MAKEFILE_LIST))
	@echo "Variables: CC=$(CC) O=$(O) V=1 DEBUG=1 SAN=address,undefined"
