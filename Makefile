# Nightshift: build, test, install. `make help` lists the targets.
#
# What is built stands here; how, in mk/flags.mk; all else in the other mk/*.mk. Objects come
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

include mk/flags.mk

# ----------------------------------------------------------------- layers

objects = $(patsubst src/%.c,$(O)/%.o,$(sort $(wildcard src/$(1)/*.c src/$(1)/*/*.c)))

BASE_O := $(call objects,base)
PRIV_O := $(call objects,private)
CORE_O := $(call objects,core) $(O)/gen/ns_sql.o
LUAC_O := $(call objects,lua)
HOST_O := $(call objects,host)

$(O)/base/%.o: SEES = -Isrc/include -Isrc/base
$(O)/core/%.o: SEES = -Isrc/include -Isrc/base -Isrc/core -I$(O)/gen $(MARIADB_CFLAGS)
$(O)/gen/%.o:  SEES = -Isrc/include -Isrc/base -Isrc/core -I$(O)/gen
$(O)/private/%.o: SEES = -Isrc/include -Isrc/base -Isrc/core -Isrc/private
$(O)/lua/%.o:  SEES = -Isrc/include -Isrc/base -Isrc/private -Isrc/lua $(LUA_CFLAGS)
$(O)/host/%.o: SEES = -Isrc/include -Isrc/base -Isrc/core -Isrc/host \
  $(if $(filter $(SPEAKS_LUA),$@),-Isrc/lua $(LUA_CFLAGS))
SPEAKS_LUA := $(addprefix $(O)/host/,main.o config.o runner.o runners.o schedules.o figures.o process/zygote.o \
  worker/%.o)
# Only the program has these: position independent, but no library.
$(O)/host/%.o: PIC := -fPIE
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

all: $(MODULE) $(PROGRAM) $(LIBRARY)

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
	$(Q)$(CC) $(LDFLAGS) -pie -rdynamic -o $@ $^ $(MARIADB_LIBS) $(JANSSON_LIBS) $(UV_LIBS) $(MHD_LIBS) \
	  $(LUA_LIBS) -lm

# ------------------------------------------------------ install and try

# Program, module and Lua files, and for C programs the library with its headers and what
# pkg-config reads; the SQL is inside. The program finds the Lua
# files by its own path: ../share/lua/5.4.
#: make install     PREFIX=/usr/local; also BINDIR, LUADIR, LIBDIR, INCDIR, CLIBDIR, MANDIR, UNITDIR,
#:                  DESTDIR, and for completions BASHDIR, ZSHDIR, FISHDIR
PUBLIC := nightshift.h nightshift_types.h
VERSION = $(shell sed -n 's/^.define NS_VERSION "\(.*\)"/\1/p' src/include/nightshift.h)
PC_LINES = 'Name: nightshift' 'Description: Durable background jobs on MariaDB' \
  'Version: $(VERSION)' 'Requires: libmariadb' \
  'Cflags: -I$(INCDIR)' 'Libs: -L$(CLIBDIR) -lnightshift -pthread'
.PHONY: install uninstall man
install: all man
	install -d "$(DESTDIR)$(BINDIR)" "$(DESTDIR)$(LIBDIR)/nightshift"
	install -m 755 $(PROGRAM) "$(DESTDIR)$(BINDIR)/nightshift"
	install -m 755 $(MODULE) "$(DESTDIR)$(LIBDIR)/nightshift/core.so"
	install -d "$(DESTDIR)$(INCDIR)" "$(DESTDIR)$(CLIBDIR)/pkgconfig"
	install -m 644 $(PUBLIC:%=src/include/%) "$(DESTDIR)$(INCDIR)"
	install -m 644 $(LIBRARY) "$(DESTDIR)$(CLIBDIR)"
	printf '%s\n' $(PC_LINES) > "$(DESTDIR)$(CLIBDIR)/pkgconfig/nightshift.pc"
	cd lua && find nightshift -name '*.lua' \
	  -exec install -D -m 644 {} "$(DESTDIR)$(LUADIR)/{}" \;
	install -d "$(DESTDIR)$(MANDIR)/man1"
	for page in $(O)/man/*.1; do ! test -e "$$page" || install -m 644 "$$page" "$(DESTDIR)$(MANDIR)/man1"; done
	test -z "$(UNITDIR)" || { install -d "$(DESTDIR)$(UNITDIR)" && sed 's|@BINDIR@|$(BINDIR)|' mk/nightshift@.service \
	  > "$(DESTDIR)$(UNITDIR)/nightshift@.service"; }
	for pair in "nightshift,$(BASHDIR)" "_nightshift,$(ZSHDIR)" "nightshift.fish,$(FISHDIR)"; do \
	  ! test -e "$(O)/completion/$${pair%%,*}" || \
	  install -D -m 644 "$(O)/completion/$${pair%%,*}" "$(DESTDIR)$${pair#*,}/$${pair%%,*}"; done

#: make man         manual pages and completions, from the parser of the command line, into build
# The parser is argparse's; without it there are none.
GENERATE = LUA_PATH="lua/?.lua;lua/?/init.lua;;" LUA_CPATH="$(O)/?.so;;" $(LUA) doc/generate.lua
man: all
	@mkdir -p $(O)/man $(O)/completion && rm -f $(O)/man/* $(O)/completion/*
	@! $(LUA) -e 'require "argparse"' 2>/dev/null || \
	  { $(GENERATE) man $(O)/man $(VERSION) && $(GENERATE) completion $(O)/completion; }

uninstall:
	rm -f "$(DESTDIR)$(BINDIR)/nightshift"
	rm -rf "$(DESTDIR)$(LIBDIR)/nightshift" "$(DESTDIR)$(LUADIR)/nightshift"
	rm -f "$(DESTDIR)$(MANDIR)/man1/nightshift.1" "$(DESTDIR)$(MANDIR)/man1"/nightshift-*.1
	rm -f "$(DESTDIR)$(UNITDIR)/nightshift@.service"
	rm -f "$(DESTDIR)$(BASHDIR)/nightshift" "$(DESTDIR)$(ZSHDIR)/_nightshift" "$(DESTDIR)$(FISHDIR)/nightshift.fish"
	rm -f $(PUBLIC:%="$(DESTDIR)$(INCDIR)/%") "$(DESTDIR)$(CLIBDIR)/libnightshift.a" \
	  "$(DESTDIR)$(CLIBDIR)/pkgconfig/nightshift.pc"

# ---------------------------------------------------------- a Debian package

# One binary package, made with dpkg-dev: program, module, C library, pages, service. What it
# depends on is read from what it links. Running hosts are restarted by an upgrade, since scripts
# that are read again would mix the old program with the new Lua files.
DEB      := $(O)/deb
ARCH      = $(shell dpkg --print-architecture)
MULTIARCH = $(shell dpkg-architecture -qDEB_HOST_MULTIARCH)
DEB_FILE  = $(O)/nightshift_$(VERSION)-1_$(ARCH).deb
DEB_TREE  = DESTDIR=$(abspath $(DEB))/tree PREFIX=/usr LIBDIR=/usr/lib/$(MULTIARCH)/lua/5.4 \
  CLIBDIR=/usr/lib/$(MULTIARCH) ZSHDIR=/usr/share/zsh/vendor-completions VERSION=$(VERSION)
DEB_DOC   = $(DEB)/tree/usr/share/doc/nightshift
DEB_ELF   = tree/usr/bin/nightshift tree/usr/lib/$(MULTIARCH)/lua/5.4/nightshift/core.so
define DEB_CONTROL
Package: nightshift
Version: $(VERSION)-1
Section: database
Priority: optional
Architecture: $(ARCH)
Maintainer: the Nightshift authors <root@localhost>
Depends: @DEPENDS@, lua-argparse, passwd
Recommends: lua5.4, tzdata
Suggests: mariadb-server, mariadb-server-core, mariadb-client-core
Description: durable background jobs for Lua on MariaDB
 A C library pushes jobs into MariaDB tables and claims them. A host program runs
 handlers that are Lua functions, in worker processes, and each job ends once.
endef
define DEB_POSTINST
#!/bin/sh
set -e
[ "$$1" = configure ] || exit 0
getent passwd nightshift >/dev/null || useradd --system --user-group --no-create-home \
  --home-dir /var/lib/nightshift --shell /usr/sbin/nologin nightshift
[ -d /run/systemd/system ] || exit 0
systemctl daemon-reload
[ -z "$$2" ] || systemctl try-restart 'nightshift@*.service'
endef
define DEB_PRERM
#!/bin/sh
set -e
[ "$$1" = remove ] && [ -d /run/systemd/system ] || exit 0
systemctl stop 'nightshift@*.service'
endef
define DEB_POSTRM
#!/bin/sh
set -e
[ ! -d /run/systemd/system ] || systemctl daemon-reload || true
[ "$$1" != purge ] || rm -rf /etc/nightshift /var/lib/nightshift
endef

#: make deb         a Debian package of it, into build/; VERSION=0.1.0
.PHONY: deb
deb: export CONTROL = $(DEB_CONTROL)
deb: export POSTINST = $(DEB_POSTINST)
deb: export PRERM = $(DEB_PRERM)
deb: export POSTRM = $(DEB_POSTRM)
deb: all
	@command -v dpkg-shlibdeps >/dev/null || { echo "deb: apt-get install dpkg-dev" >&2; exit 1; }
	@rm -rf $(DEB) && mkdir -p $(DEB)/debian $(DEB)/tree/DEBIAN $(DEB_DOC)
	@$(MAKE) --no-print-directory -s install $(DEB_TREE)
	@install -d -m 755 $(DEB)/tree/etc/nightshift
	@cd $(DEB) && strip --strip-unneeded $(DEB_ELF) && strip --strip-debug tree/usr/lib/$(MULTIARCH)/*.a && \
	  printf 'Source: nightshift\n\nPackage: nightshift\nArchitecture: any\n' > debian/control && \
	  dpkg-shlibdeps -O $(DEB_ELF:%=-e%) | sed 's/^shlibs:Depends=//' > depends
	@gzip -9n $(DEB)/tree/usr/share/man/man1/*.1
	@cp LICENSE $(DEB_DOC)/copyright && gzip -9nc CHANGELOG.md > $(DEB_DOC)/changelog.gz
	@printf '%s\n' "$$CONTROL" | sed "s|@DEPENDS@|$$(cat $(DEB)/depends)|" > $(DEB)/tree/DEBIAN/control
	@cd $(DEB)/tree/DEBIAN && printf '%s\n' "$$POSTINST" > postinst && printf '%s\n' "$$PRERM" > prerm && \
	  printf '%s\n' "$$POSTRM" > postrm && chmod 755 postinst prerm postrm
	@cd $(DEB)/tree && find usr -type f -exec md5sum {} + | sort -k 2 > DEBIAN/md5sums
	@dpkg-deb --root-owner-group --build $(DEB)/tree $(DEB_FILE)

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

include mk/test.mk mk/check.mk

# The lines of these files that begin with "#:".
.PHONY: help
help:
	@sed -n 's/^#: //p' Makefile $(filter mk/%,$(MAKEFILE_LIST))
	@echo "Variables: CC=$(CC) O=$(O) V=1 DEBUG=1 SAN=address,undefined"
