/*
** The URL parser. It works in one copy of the text: cuts are made by writing NULs, and decoding
** shrinks in place. So all parts live in one block. Cutting comes before decoding: an encoded
** delimiter never delimits. Messages name the part that is wrong, not its content, wherever a
** password with an unencoded delimiter could have ended up there.
**
** Invariant: no message shows a byte of the password. No assert: a failed parse does not know
** which bytes are the password's; the fuzzer looks for its URLs in messages.
*/
#include "link/link.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base.h"

static int hexdigit(char c) {
  if (c >= '0' && c <= '9')
    return c - '0';
  if (c >= 'a' && c <= 'f')
    return c - 'a' + 10;
  if (c >= 'A' && c <= 'F')
    return c - 'A' + 10;
  return -1;
}

static bool is_control(char c) {
  return (unsigned char)c < 0x20 || c == 0x7f;
}

/* Decodes in place. 'what' names the part; 'any' allows control bytes. */
static ns_status decode(char *s, const char *what, bool any, ns_err *err) {
  char *to = s;
  for (; *s != '\0'; s++) {
    char c = *s;
    if (c == '%') {
      int high = hexdigit(s[1]);
      int low = high >= 0 ? hexdigit(s[2]) : -1;
      if (low < 0)
        return ns_fail(err, NS_EINVALID,
                       "database URL: in the %s a %% is not followed by two "
                       "hexadecimal digits; write %% itself as %%25",
                       what);
      c = (char)(high * 16 + low);
      s += 2;
    }
    if (c == '\0' || (!any && is_control(c)))
      return ns_fail(err, NS_EINVALID,
                     "database URL: the %s contains a %s", what,
                     c == '\0' ? "NUL byte" : "control character");
    *to++ = c;
  }
  *to = '\0';
  return NS_OK;
}

/* Decodes 's' and stores it, or NULL when it is empty. */
static ns_status decode_field(const char **field, char *s, const char *what, ns_err *err) {
  *field = s != NULL && *s != '\0' ? s : NULL;
  return s != NULL ? decode(s, what, false, err) : NS_OK;
}

/* Cuts 's' at the first 'c' and returns the rest, NULL without one. */
static char *cut_at(char *s, char c) {
  char *at = strchr(s, c);
  if (at == NULL)
    return NULL;
  *at = '\0';
  return at + 1;
}

static ns_status take_user(ns_url *u, char *s, ns_err *err) {
  char *password = cut_at(s, ':');
  u->password = password;
  if (password != NULL && decode(password, "password", true, err) != NS_OK)
    return NS_EINVALID;
  return decode_field(&u->user, s, "user name", err);
}

/* Reads the digits at '*s'; -1: there are none, or above INT32_MAX. */
static int64_t read_number(const char **s) {
  int64_t n = **s >= '0' && **s <= '9' ? 0 : -1;
  for (; **s >= '0' && **s <= '9' && n <= INT32_MAX; ++*s)
    n = n * 10 + (**s - '0');
  return n <= INT32_MAX ? n : -1;
}

static ns_status take_port(ns_url *u, const char *s, ns_err *err) {
  int64_t port;
  if (*s == '\0')
    return NS_OK;
  port = read_number(&s);
  if (port < 1 || port > 65535 || *s != '\0')
    return ns_fail(err, NS_EINVALID,
                   "database URL: the port is not a number from 1 to 65535 "
                   "(in a password write / ? # @ as %%2F %%3F %%23 %%40)");
  u->port = (unsigned)port;
  return NS_OK;
}

/* A list stays a text, of decoded entries. They are cut at colons after that, so that each part of
** an entry may be encoded. */
static ns_status take_list(ns_url *u, char *s, ns_err *err) {
  char *to = s;
  u->host = s;
  for (char *next; s != NULL; s = next) {
    next = cut_at(s, ',');
    if (decode(s, "list of hosts", false, err) != NS_OK)
      return NS_EINVALID;
    if (*s == '\0' || strchr(s, ',') != NULL)
      return ns_fail(err, NS_EINVALID,
                     "database URL: in the list of hosts one is empty, or has a comma of its own");
    memmove(to, s, strlen(s) + 1);
    to += strlen(to);
    if (next != NULL)
      *to++ = ',';
  }
  if (ns_link_servers_check(u->host, err) == NS_OK)
    return NS_OK;
  return ns_err_context(err, "database URL");
}

static ns_status take_host(ns_url *u, char *s, ns_err *err) {
  char *port;
  if (strchr(s, ',') != NULL)
    return take_list(u, s, err);
  if (*s == '[') {
    char *end = cut_at(++s, ']');
    if (end == NULL || *s == '\0' || (*end != '\0' && *end != ':'))
      return ns_fail(err, NS_EINVALID,
                     "database URL: an IPv6 host is written [address] or "
                     "[address]:port");
    port = *end == ':' ? end + 1 : NULL;
  } else
    port = cut_at(s, ':');
  if (port != NULL && take_port(u, port, err) != NS_OK)
    return NS_EINVALID;
  if (decode_field(&u->host, s, "host", err) != NS_OK)
    return NS_EINVALID;
  return u->host == NULL || strchr(u->host, ',') == NULL
             ? NS_OK
             : ns_fail(err, NS_EINVALID, "database URL: the host contains an encoded comma");
}

/* user:password@host:port; the last @ counts, so a password may have one. */
static ns_status take_authority(ns_url *u, char *s, ns_err *err) {
  char *at = strrchr(s, '@');
  if (at == NULL)
    return take_host(u, s, err);
  *at = '\0';
  if (take_user(u, s, err) != NS_OK)
    return NS_EINVALID;
  return take_host(u, at + 1, err);
}

static ns_status set_tls(ns_url *u, const char *value, ns_err *err) {
  if (strcmp(value, "off") != 0 && strcmp(value, "verify") != 0 &&
      strcmp(value, "trust") != 0)
    return ns_fail(err, NS_EINVALID,
                   "database URL: tls must be off, verify or trust, got '%.40s'",
                   value);
  u->tls = value;
  return NS_OK;
}

static ns_status set_timeout(int64_t *field, const char *name,
                             const char *value, ns_err *err) {
  char where[48];
  snprintf(where, sizeof where, "database URL: %s", name);
  if (ns_duration_parse(ns_str(value), field, err) != NS_OK)
    return ns_err_context(err, where);
  return *field > 0 ? NS_OK
                    : ns_fail(err, NS_EINVALID, "%s must be above zero", where);
}

static ns_status set_connect_timeout(ns_url *u, const char *value, ns_err *err) {
  return set_timeout(&u->connect_timeout, "connect_timeout", value, err);
}

static ns_status set_read_timeout(ns_url *u, const char *value, ns_err *err) {
  return set_timeout(&u->read_timeout, "read_timeout", value, err);
}

static ns_status set_max_payload(ns_url *u, const char *value, ns_err *err) {
  const char *end = value;
  int64_t n = read_number(&end);
  if (n < 1 || *end != '\0')
    return ns_fail(err, NS_EINVALID,
                   "database URL: max_payload must be a number of bytes, got "
                   "'%.40s'",
                   value);
  u->max_payload = n;
  return NS_OK;
}

/* A key sets the text field at 'field', or is read by 'set'. */
static const struct param {
  const char *name;
  size_t field;
  ns_status (*set)(ns_url *u, const char *value, ns_err *err);
} params[] = {
    {"ca", offsetof(ns_url, ca), NULL},
    {"cert", offsetof(ns_url, cert), NULL},
    {"connect_timeout", 0, set_connect_timeout},
    {"file", offsetof(ns_url, file), NULL},
    {"group", offsetof(ns_url, group), NULL},
    {"key", offsetof(ns_url, key), NULL},
    {"max_payload", 0, set_max_payload},
    {"read_timeout", 0, set_read_timeout},
    {"tls", 0, set_tls},
    {"unix_socket", offsetof(ns_url, socket), NULL},
};
#define NPARAMS (sizeof params / sizeof params[0])

static ns_status unknown_key(const char *key, ns_err *err) {
  bool plain = strlen(key) <= 40 &&
               strspn(key, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                           "0123456789_-") == strlen(key);
  return ns_fail(err, NS_EINVALID,
                 "database URL: unknown key%s%s%s; the keys are ca, cert, "
                 "connect_timeout, file, group, key, max_payload, "
                 "read_timeout, tls and unix_socket",
                 plain ? " '" : "", plain ? key : "", plain ? "'" : "");
}

/* Reads one key=value; '*seen' has a bit per key that was there already. */
static ns_status take_param(ns_url *u, char *key, unsigned *seen,
                            ns_err *err) {
  char *value = cut_at(key, '=');
  size_t i = 0;
  if (decode(key, "query", false, err) != NS_OK)
    return NS_EINVALID;
  while (i < NPARAMS && strcmp(params[i].name, key) != 0)
    i++;
  if (i == NPARAMS)
    return unknown_key(key, err);
  if (*seen & 1u << i)
    return ns_fail(err, NS_EINVALID, "database URL: %s is given twice", key);
  *seen |= 1u << i;
  if (value == NULL || *value == '\0')
    return ns_fail(err, NS_EINVALID, "database URL: %s has no value", key);
  if (decode(value, key, false, err) != NS_OK)
    return NS_EINVALID;
  if (params[i].set != NULL)
    return params[i].set(u, value, err);
  memcpy((char *)u + params[i].field, &value, sizeof value);
  return NS_OK;
}

static ns_status take_query(ns_url *u, char *s, ns_err *err) {
  unsigned seen = 0;
  while (s != NULL) {
    char *next = cut_at(s, '&');
    if (*s != '\0' && take_param(u, s, &seen, err) != NS_OK)
      return NS_EINVALID;
    s = next;
  }
  return NS_OK;
}

/* Returns where the authority begins, or NULL. */
static char *after_scheme(char *s) {
  static const char *const schemes[] = {"mysql://", "mariadb://"};
  for (size_t i = 0; i < 2; i++)
    if (strncasecmp(s, schemes[i], strlen(schemes[i])) == 0)
      return s + strlen(schemes[i]);
  return NULL;
}

/* Bytes that would silently change the meaning of the rest. */
static ns_status check_bytes(const char *s, ns_err *err) {
  const char *rest = s + strcspn(s, "/?#");
  for (const char *p = s; *p != '\0'; p++)
    if (is_control(*p) || *p == ' ')
      return ns_fail(err, NS_EINVALID,
                     "database URL: it contains a space or a control "
                     "character; write a space as %%20");
  if (strchr(rest, '#') != NULL)
    return ns_fail(err, NS_EINVALID,
                   "database URL: it contains a #; write it as %%23");
  if (strchr(rest, '@') != NULL)
    return ns_fail(err, NS_EINVALID,
                   "database URL: an @ stands behind the host; write it as "
                   "%%40 (and in a password / ? # as %%2F %%3F %%23)");
  return NS_OK;
}

static ns_status parse_parts(ns_url *u, char *s, ns_err *err) {
  char *query;
  char *path;
  if (check_bytes(s, err) != NS_OK)
    return NS_EINVALID;
  query = cut_at(s, '?');
  path = cut_at(s, '/');
  if (path != NULL && strchr(path, '/') != NULL)
    return ns_fail(err, NS_EINVALID,
                   "database URL: more than one / after the host; write a / "
                   "in the database name as %%2F");
  if (take_authority(u, s, err) != NS_OK ||
      decode_field(&u->database, path, "database name", err) != NS_OK ||
      take_query(u, query, err) != NS_OK)
    return NS_EINVALID;
  return u->socket == NULL || u->host == NULL || strchr(u->host, ',') == NULL
             ? NS_OK
             : ns_fail(err, NS_EINVALID,
                       "database URL: unix_socket is of one server; in a list of hosts write the "
                       "path of each as %%2Frun%%2Fname");
}

ns_status ns_url_parse(const char *url, ns_url *out, ns_err *err) {
  char *start;
  *out = NS_URL_INIT;
  if (url == NULL)
    return ns_fail(err, NS_EINVALID, "database URL: there is none");
  if ((out->text = strdup(url)) == NULL)
    return ns_fail(err, NS_ENOMEM, "database URL: out of memory");
  start = after_scheme(out->text);
  if (start != NULL && parse_parts(out, start, err) == NS_OK)
    return NS_OK;
  if (start == NULL)
    ns_fail(err, NS_EINVALID,
            "database URL: it must begin with mysql:// or mariadb://");
  ns_url_free(out);
  return NS_EINVALID;
}

void ns_url_free(ns_url *u) {
  free(u->text);
  *u = NS_URL_INIT;
}

static void set_absent(const char **field, const char *value) {
  if (*field == NULL)
    *field = value;
}

void ns_url_fill(const ns_url *u, ns_config *cfg) {
  set_absent(&cfg->host, u->host);
  set_absent(&cfg->user, u->user);
  set_absent(&cfg->password, u->password);
  set_absent(&cfg->database, u->database);
  set_absent(&cfg->socket, u->socket);
  set_absent(&cfg->file, u->file);
  set_absent(&cfg->group, u->group);
  set_absent(&cfg->tls, u->tls);
  set_absent(&cfg->ca, u->ca);
  set_absent(&cfg->cert, u->cert);
  set_absent(&cfg->key, u->key);
  if (cfg->port == 0)
    cfg->port = u->port;
  if (cfg->connect_timeout == 0)
    cfg->connect_timeout = u->connect_timeout;
  if (cfg->read_timeout == 0)
    cfg->read_timeout = u->read_timeout;
  if (cfg->max_payload == 0)
    cfg->max_payload = u->max_payload;
}

void ns_url_encode(ns_buf *out, const char *text) {
  static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
                              "abcdefghijklmnopqrstuvwxyz0123456789-._~/";
  for (; *text != '\0'; text++)
    if (strchr(plain, *text) != NULL)
      ns_buf_addc(out, *text);
    else
      ns_buf_addf(out, "%%%02X", (unsigned char)*text);
}
