/* The formats that the standard names, as regular expressions. Where readers differ, the narrower set is taken, so that
 * what is written is right for all. */
#include "engine/grammar/schema.h"

#define DATE                                                                                                           \
        "(\\d{4}-((0[13578]|1[02])-(0[1-9]|[12]\\d|3[01])|(0[469]|11)-(0[1-9]|[12]\\d|30)|02-(0[1-9]|1\\d|2[0-8]))|"   \
        "(\\d\\d(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29)"
#define OFFSET "([zZ]|[+-]([01]\\d|2[0-3]):[0-5]\\d)"
#define TIME "(([01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(\\.\\d+)?" OFFSET "|23:59:60(\\.\\d+)?([zZ]|[+-]00:00))"
#define OCTET "(25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
#define IPV4 "(" OCTET "\\.){3}" OCTET
#define H16 "[0-9A-Fa-f]{1,4}"
#define LS32 "(" H16 ":" H16 "|" IPV4 ")"
#define IPV6                                                                                                           \
        "((" H16 ":){6}" LS32 "|::(" H16 ":){5}" LS32 "|(" H16 ")?::(" H16 ":){4}" LS32 "|((" H16 ":){0,1}" H16        \
        ")?::(" H16 ":){3}" LS32 "|((" H16 ":){0,2}" H16 ")?::(" H16 ":){2}" LS32 "|((" H16 ":){0,3}" H16 ")?::" H16   \
        ":" LS32 "|((" H16 ":){0,4}" H16 ")?::" LS32 "|((" H16 ":){0,5}" H16 ")?::" H16 "|((" H16 ":){0,6}" H16        \
        ")?::)"
#define LABEL "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#define ATOM "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
#define HEX "[0-9A-Fa-f]"
#define PCHAR "([A-Za-z0-9._~!$&'()*+,;=:@-]|%" HEX HEX ")"
#define QUERY "([A-Za-z0-9._~!$&'()*+,;=:@/?-]|%" HEX HEX ")*"
#define AUTHORITY                                                                                                      \
        "(([A-Za-z0-9._~!$&'()*+,;=:-]|%" HEX HEX ")*@)?(([A-Za-z0-9._~!$&'()*+,;=-]|%" HEX HEX ")*|\\[" IPV6          \
        "\\])(:\\d{1,5})?"
#define ENDS "(\\?" QUERY ")?(#" QUERY ")?"
#define URI                                                                                                            \
        "[A-Za-z][A-Za-z0-9+.-]*:(//" AUTHORITY "(/" PCHAR "*)*|/(" PCHAR "+(/" PCHAR "*)*)?|" PCHAR "+(/" PCHAR       \
        "*)*)" ENDS
#define SEGMENT_NC "([A-Za-z0-9._~!$&'()*+,;=@-]|%" HEX HEX ")+"
#define RELATIVE "(//" AUTHORITY "(/" PCHAR "*)*|/(" PCHAR "+(/" PCHAR "*)*)?|" SEGMENT_NC "(/" PCHAR "*)*|)" ENDS

#define WIDE "\\u00a0-\\ud7ff\\uf900-\\ufdcf\\ufdf0-\\uffef"
#define IPCHAR "([A-Za-z0-9._~!$&'()*+,;=:@" WIDE "-]|%" HEX HEX ")"
#define IQUERY "([A-Za-z0-9._~!$&'()*+,;=:@/?" WIDE "-]|%" HEX HEX ")*"
#define IENDS "(\\?" IQUERY ")?(#" IQUERY ")?"
#define IAUTHORITY                                                                                                     \
        "(([A-Za-z0-9._~!$&'()*+,;=:" WIDE "-]|%" HEX HEX ")*@)?(([A-Za-z0-9._~!$&'()*+,;=" WIDE "-]|%" HEX HEX        \
        ")*|\\[" IPV6 "\\])(:\\d{1,5})?"
#define IRI                                                                                                            \
        "[A-Za-z][A-Za-z0-9+.-]*:(//" IAUTHORITY "(/" IPCHAR "*)*|/(" IPCHAR "+(/" IPCHAR "*)*)?|" IPCHAR "+(/" IPCHAR \
        "*)*)" IENDS
#define IRELATIVE                                                                                                      \
        "(//" IAUTHORITY "(/" IPCHAR "*)*|/(" IPCHAR "+(/" IPCHAR "*)*)?|([A-Za-z0-9._~!$&'()*+,;=@" WIDE              \
        "-]|%" HEX HEX ")+(/" IPCHAR "*)*|)" IENDS
#define VARIABLE "([A-Za-z0-9_]|%" HEX HEX ")(\\.?([A-Za-z0-9_]|%" HEX HEX "))*(:[1-9]\\d{0,3}|\\*)?"

/* The part of ECMA's regular expressions that every dialect takes: no look-around, no back references, no names;
 * classes of single characters and the usual ranges; groups in groups. */
#define RX_QUANTIFIER "([*+?]|\\{[1-9]\\d?(,([1-9]\\d\\d)?)?\\})?"
#define RX_ATOM                                                                                                        \
        "([A-Za-z0-9_ .,:;@#%&=<>!\"'~" WIDE                                                                           \
        "-]|\\\\[dDwWsSnrtfv.*+?()\\[\\]{}|^$\\\\/]|\\[\\^?(a-z|A-Z|0-9|[A-Za-z0-9_ "                                  \
        ".,:;@]|\\\\[dws])+\\])" RX_QUANTIFIER
#define RX_LIST(term) "\\^?(" term ")*\\$?(\\|\\^?(" term ")*\\$?)*"
#define RX_GROUP(inside) "\\((\\?:)?" inside "\\)" RX_QUANTIFIER
#define RX_BRANCHES RX_LIST(RX_ATOM "|" RX_GROUP(RX_LIST(RX_ATOM "|" RX_GROUP(RX_LIST(RX_ATOM)))))

static const struct {
        const char *name, *pattern; /* NULL: not held */
} formats[] = {
        { "date", "^" DATE "$" },
        { "time", "^" TIME "$" },
        { "date-time", "^" DATE "[Tt]" TIME "$" },
        { "duration",
          "^P(\\d+W|(\\d+D|\\d+M(\\d+D)?|\\d+Y(\\d+M(\\d+D)?)?)(T(\\d+H(\\d+M(\\d+S)?)?|\\d+M(\\d+S)?|\\d+S))?|"
          "T(\\d+H(\\d+M(\\d+S)?)?|\\d+M(\\d+S)?|\\d+S))$" },
        { "email", "^" ATOM "(\\." ATOM ")*@(" LABEL "\\.)+" LABEL "$" },
        { "hostname", "^(?!(.*\\.)?..--)(?=.{1,253}$)" LABEL "(\\." LABEL ")*$" },
        { "ipv4", "^" IPV4 "$" },
        { "ipv6", "^" IPV6 "$" },
        { "uri", "^" URI "$" },
        { "uri-reference", "^(" URI "|" RELATIVE ")$" },
        { "uuid", "^" HEX "{8}-" HEX "{4}-" HEX "{4}-" HEX "{4}-" HEX "{12}$" },
        { "json-pointer", "^(/([^/~]|~[01])*)*$" },
        { "relative-json-pointer", "^(0|[1-9]\\d*)(#|(/([^/~]|~[01])*)*)$" },
        { "iri", "^" IRI "$" },
        { "iri-reference", "^(" IRI "|" IRELATIVE ")$" },
        { "uri-template", "^([A-Za-z0-9!#$&()*+,./:;=?@_~\\[\\]" WIDE "-]|%" HEX HEX "|\\{[+#./;?&]?" VARIABLE
                          "(," VARIABLE ")*\\})*$" },
        { "idn-email", "^[A-Za-z0-9" WIDE "]+([.+_-][A-Za-z0-9" WIDE "]+)*@(" LABEL "\\.)+" LABEL "$" },
        { "idn-hostname", "^(?!(.*\\.)?..--)(?=.{1,253}$)" LABEL "(\\." LABEL ")*$" },
        { "regex", "^" RX_BRANCHES "$" },
};

const char *tdm_format_pattern(const char *name, size_t size, bool *ret_held)
{
        *ret_held = true;
        for (size_t i = 0; i < TDM_ARRAY_SIZE(formats); i++) {
                if (strlen(formats[i].name) != size || memcmp(formats[i].name, name, size) != 0)
                        continue;
                *ret_held = formats[i].pattern != NULL;
                return formats[i].pattern;
        }
        return NULL;
}
