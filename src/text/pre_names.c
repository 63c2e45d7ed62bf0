#include "text/pre_names.h"

#include <string.h>

#define BYTES "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":false}"
#define GPT2 "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":true}"
#define SPLIT(regex) "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" regex "\"},\"behavior\":\"Isolated\",\"invert\":false}"
#define SEQUENCE(a, b) "{\"type\":\"Sequence\",\"pretokenizers\":[" a "," b "]}"
#define LINES "|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"
#define LLAMA_OF(letters, marks, digits) \
    SPLIT("(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?" letters "+|" digits \
          "| ?[^\\\\s\\\\p{L}" marks "\\\\p{N}]+[\\\\r\\\\n]*" LINES)
#define LLAMA(digits) LLAMA_OF("\\\\p{L}", "", digits)
#define DEEPSEEK_V3 \
    SPLIT(NUMBERS) "," SPLIT("[一-龥぀-ゟ゠-ヿ]+") "," \
    SPLIT("[!\\\"#$%&'()*+,\\\\-./:;<=>?@\\\\[\\\\\\\\\\\\]^_`{|}~][A-Za-z]+|[^\\\\r\\\\n\\\\p{L}\\\\p{P}\\\\p{S}]?[\\\\p{L}\\\\p{M}]+" \
          "| ?[\\\\p{P}\\\\p{S}]+[\\\\r\\\\n]*" LINES)
#define DEEPSEEK_CODER \
    SPLIT("[\\\\r\\\\n]") "," SPLIT("\\\\s?\\\\p{L}+") "," SPLIT("\\\\s?\\\\p{P}+") "," SPLIT("[一-龥ࠀ-一가-퟿]+") "," DIGITS
#define UPPER "[\\\\p{Lu}\\\\p{Lt}\\\\p{Lm}\\\\p{Lo}\\\\p{M}]"
#define LOWER "[\\\\p{Ll}\\\\p{Lm}\\\\p{Lo}\\\\p{M}]"
#define ENDING "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
#define CASED(ending, digits) \
    SPLIT("[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?" UPPER "*" LOWER "+" ending "|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?" UPPER "+" LOWER "*" ending \
          "|" digits "| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n/]*" LINES)
#define NUMBER "\\\\p{N}"
#define NUMBERS "\\\\p{N}{1,3}"
#define DIGITS "{\"type\":\"Digits\",\"individual_digits\":true}"

#define RULE_GPT2 GPT2, "null"
#define RULE_DIGITS SEQUENCE(DIGITS, GPT2), "null"
#define RULE_LLAMA3 SEQUENCE(LLAMA(NUMBERS), BYTES), "null"
#define RULE_O200K SEQUENCE(CASED(ENDING, NUMBERS), BYTES), "null"
#define RULE_TEKKEN SEQUENCE(CASED("", NUMBER), BYTES), "null"

/* Of names with the same rules, the first is the one that is written. */
static const ag_pre_name known[] = {
    {"gpt-2", RULE_GPT2, false, false},
    {"phi-2", RULE_GPT2, false, false},
    {"olmo", RULE_GPT2, false, false},
    {"mpt", RULE_GPT2, false, false},
    {"exaone4", RULE_GPT2, false, false},
    {"smollm", RULE_DIGITS, false, false},
    {"refact", RULE_DIGITS, false, false},
    {"starcoder", RULE_DIGITS, false, false},
    {"command-r", RULE_DIGITS, false, false},
    {"codeshell", RULE_DIGITS, false, false},
    {"exaone", RULE_DIGITS, false, false},
    {"minerva-7b", RULE_DIGITS, false, false},
    {"llama-bpe", RULE_LLAMA3, true, true},
    {"llama3", RULE_LLAMA3, true, true},
    {"llama-v3", RULE_LLAMA3, true, true},
    {"falcon3", RULE_LLAMA3, true, true},
    {"dbrx", RULE_LLAMA3, false, false},
    {"smaug-bpe", RULE_LLAMA3, false, false},
    {"chatglm-bpe", RULE_LLAMA3, false, false},
    {"glm4", RULE_LLAMA3, true, false},
    {"qwen2", SEQUENCE(LLAMA(NUMBER), BYTES), "{\"type\":\"NFC\"}", false, false},
    {"deepseek-r1-qwen", SEQUENCE(LLAMA(NUMBER), BYTES), "{\"type\":\"NFC\"}", false, false},
    {"qwen35", SEQUENCE(LLAMA_OF("[\\\\p{L}\\\\p{M}]", "\\\\p{M}", NUMBER), BYTES), "null", false, false},
    {"deepseek-coder", SEQUENCE(DEEPSEEK_CODER, BYTES), "null", false, false},
    {"deepseek-v3", SEQUENCE(DEEPSEEK_V3, BYTES), "null", false, false},
    {"stablelm2", SEQUENCE(LLAMA(NUMBER), BYTES), "null", false, false},
    {"minicpm5", SEQUENCE(SPLIT(NUMBERS), GPT2), "null", true, false},
    {"gpt-4o", RULE_O200K, false, false},
    {"llama4", RULE_O200K, false, false},
    {"tekken", RULE_TEKKEN, true, true},
};
enum { N_KNOWN = sizeof known / sizeof *known };

const ag_pre_name *ag_pre_name_find(const char *name)
{
    for (size_t i = 0; i < N_KNOWN; i++)
        if (strcmp(known[i].name, name) == 0) return &known[i];
    return NULL;
}

void ag_pre_names_list(ag_str *out)
{
    for (size_t i = 0; i < N_KNOWN; i++) ag_str_printf(out, "%s%s", i ? ", " : "", known[i].name);
}

/* What a list of rules does, in one spelling: single digits may be a Digits rule or a Split by \p{N}, and the GPT-2 rule may be
 * ByteLevel's own or a Split of its own. False where no pre name could stand for it. */
static bool spell(const ag_pretokenizer *pre, ag_str *out)
{
    static const char gpt2[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
    if (pre->n == 0 || pre->rules[pre->n - 1].kind != AG_PRE_BYTE_LEVEL) return false;
    for (size_t i = 0; i < pre->n; i++) {
        const ag_pre_rule *r = &pre->rules[i];
        bool last = i + 1 == pre->n;
        if (r->kind == AG_PRE_DIGITS && r->individual) ag_str_add(out, "\\p{N}");
        else if (r->kind == AG_PRE_SPLIT && r->behavior == AG_SPLIT_ISOLATED && !r->invert && r->pattern.is_regex) ag_str_add(out, r->pattern.text);
        else if (r->kind == AG_PRE_BYTE_LEVEL && last && !r->add_prefix_space) ag_str_add(out, r->use_regex ? gpt2 : "");
        else return false;
        ag_str_add_char(out, '\n');
    }
    while (out->n && out->text[out->n - 1] == '\n') out->n--;
    return true;
}

static bool same_rules(const ag_tokenizer *t, const ag_pre_name *name, const ag_str *wanted)
{
    ag_pretokenizer pre = {0};
    json_t *rules = json_loads(name->pretokenizer, 0, NULL);
    ag_str spelled = {0};
    bool nfc = t->normalizer.n == 1 && t->normalizer.rules[0].kind == AG_NORM_NFC;
    bool same = (t->normalizer.n == 0 || nfc) && t->bpe.ignore_merges == name->ignore_merges;
    if (same) same = ag_pretokenizer_init(&pre, rules, name->name, NULL) == AG_OK;
    if (same) same = spell(&pre, &spelled) && spelled.n == wanted->n && memcmp(spelled.text, wanted->text, wanted->n) == 0;
    ag_str_free(&spelled);
    ag_pretokenizer_deinit(&pre);
    json_decref(rules);
    return same;
}

/* A normalizer other than none or NFC has no name. GGUF readers do not compose: with NFC the name is that of the rules, and text
 * that is not composed comes out otherwise there; that is how the published files are. */
const char *ag_pre_name_for(const ag_tokenizer *t)
{
    ag_str wanted = {0};
    const char *found = NULL;
    if (spell(&t->pretokenizer, &wanted))
        for (size_t i = 0; i < N_KNOWN && !found; i++)
            if (same_rules(t, &known[i], &wanted)) found = known[i].name;
    ag_str_free(&wanted);
    return found;
}
