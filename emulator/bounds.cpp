#include "bounds.h"

#include <algorithm>
#include <map>
#include <set>

#include "tokens.h"

namespace fajit_emu {

namespace {

// --- declarations of kernels ---------------------------------------------------------------------

constexpr size_t NONE = ~size_t{0};

// Where the parts of a declaration are, as numbers of tokens.
struct declaration {
    size_t file = 0, start = 0; // start: of __launch_bounds__, else of __global__
    bool bounded = false, found = false, specialized = false, defined = false;
    std::string name, bounds;
    size_t open = NONE, close = NONE; // the parentheses of its parameters
};

struct source {
    std::string *text;
    std::vector<token> tokens;

    bool is(size_t at, const char *what) const
    {
        return at < tokens.size() && word(at) == what;
    }
    std::string word(size_t at) const
    {
        return text->substr(tokens[at].begin, tokens[at].end - tokens[at].begin);
    }
};

class reader {
  public:
    reader(const source &s, size_t at) : s_(s), at_(at), define_(s.tokens[at].define) {}

    // From the token after __global__, or from __launch_bounds__; false: no kernel that it can see.
    bool read(declaration *d)
    {
        if (d->bounded && !read_bounds(d))
            return false;
        if (!read_name(d))
            return false;
        d->open = at_;
        if (!skip_balanced() || level_ != 0)
            return false;
        d->close = last_;
        return read_end(d);
    }

  private:
    const source &s_;
    size_t at_, last_ = NONE;
    unsigned define_;
    int level_ = 0; // of #if since the start

    // Makes at_ a token of this declaration; false: there is none, or it has branches.
    bool settle()
    {
        for (; at_ < s_.tokens.size(); at_++) {
            const token &t = s_.tokens[at_];
            if (t.define != define_) {
                if (define_)
                    return false;
            } else if (t.is == kind::open_if) {
                level_++;
            } else if (t.is == kind::other_branch) {
                if (level_ == 0)
                    return false;
            } else if (t.is == kind::close_if) {
                if (--level_ < 0)
                    return false;
            } else {
                return true;
            }
        }
        return false;
    }

    bool is(const char *what) const
    {
        return s_.is(at_, what);
    }

    // Past the bracket here and its partner, which last_ then is.
    bool skip_balanced()
    {
        std::string open;
        for (; settle(); at_++) {
            const std::string word = s_.word(at_);
            if (word == "(" || word == "[" || word == "{") {
                open += word;
            } else if (word == ")" || word == "]" || word == "}") {
                const char partner = word == ")" ? '(' : word == "]" ? '[' : '{';
                if (open.empty() || open.back() != partner)
                    return false;
                open.pop_back();
                if (open.empty()) {
                    last_ = at_++;
                    return true;
                }
            }
        }
        return false;
    }

    // Past template arguments; a `>` between parentheses does not end them.
    bool skip_angles()
    {
        int depth = 0;
        while (settle()) {
            if (is("(") || is("[") || is("{")) {
                if (!skip_balanced())
                    return false;
                continue;
            }
            if (is(";") || is(")"))
                return false;
            depth += is("<") ? 1 : is(">") ? -1 : 0;
            at_++;
            if (depth == 0)
                return true;
        }
        return false;
    }

    bool read_bounds(declaration *d)
    {
        at_++;
        if (!settle() || !is("("))
            return false;
        const size_t open = at_;
        if (!skip_balanced() || level_ != 0)
            return false;
        size_t end = s_.tokens[open].end; // of the token before: "&&" are two beside each other
        for (size_t i = open + 1; i < last_; i++)
            if (s_.tokens[i].define == define_) {
                d->bounds += (s_.tokens[i].begin == end ? "" : " ") + s_.word(i);
                end = s_.tokens[i].end;
            }
        return true;
    }

    static bool takes_arguments(const std::string &word)
    {
        for (const char *known :
             {"__attribute__", "__attribute", "alignas", "__align__", "__maxnreg__",
              "__cluster_dims__", "__block_size__", "decltype", "noexcept"})
            if (word == known)
                return true;
        return false;
    }

    // at_: the parenthesis after the name.
    bool read_name(declaration *d)
    {
        std::string name;
        for (;;) {
            if (!settle())
                return false;
            if (is("(")) {
                d->name = name;
                return !name.empty() && level_ == 0;
            }
            if (is("[")) {
                if (!skip_balanced())
                    return false;
            } else if (is("<")) {
                if (name.empty() || !skip_angles() || !settle())
                    return false;
                d->specialized = is("(");
            } else if (s_.tokens[at_].is == kind::word) {
                name = s_.word(at_++);
                if (name == "__launch_bounds__")
                    return false;
                if (takes_arguments(name)) {
                    name.clear();
                    if (!settle() || (is("(") && !skip_balanced()))
                        return false;
                }
            } else if (s_.tokens[at_].is == kind::literal || is("::")) {
                name.clear();
                at_++;
            } else {
                return false;
            }
        }
    }

    // What comes after the parameters: the body, or the end of the declaration.
    bool read_end(declaration *d)
    {
        for (;;) {
            if (!settle()) {
                d->defined = true; // as far as a macro goes
                return define_ != 0 && level_ == 0;
            }
            if (level_ != 0)
                return false;
            if (is("{") || is(";")) {
                d->defined = is("{");
                return true;
            }
            if (is("[") || is("(")) {
                if (!skip_balanced())
                    return false;
            } else if (s_.tokens[at_].is == kind::word || is("->") || is("::")) {
                at_++;
            } else {
                return false;
            }
        }
    }
};

// --- the new text --------------------------------------------------------------------------------

struct edit {
    size_t begin, end;
    std::string text;
};

void make_edits(std::string *text, const std::map<size_t, edit> &edits)
{
    for (auto e = edits.rbegin(); e != edits.rend(); ++e)
        text->replace(e->second.begin, e->second.end - e->second.begin, e->second.text);
}

void replace(const source &s, size_t token, const std::string &by, std::map<size_t, edit> *edits)
{
    const size_t begin = s.tokens[token].begin;
    edits->emplace(begin, edit{begin, s.tokens[token].end, by});
}

void add_parameter(const source &s, const declaration &d, const std::string &bounds,
                   std::map<size_t, edit> *edits)
{
    size_t parameters = 0, first = NONE;
    for (size_t i = d.open + 1; i < d.close; i++)
        if (s.tokens[i].define == s.tokens[d.open].define) {
            parameters++;
            first = first == NONE ? i : first;
        }
    const bool none = parameters == 0 || (parameters == 1 && s.is(first, "void"));
    if (none && parameters)
        replace(s, first, "", edits);
    replace(s, d.open, "(FAJIT_EMU_BOUNDS(" + bounds + ")" + (none ? "" : ", "), edits);
}

std::vector<declaration> find_declarations(const std::vector<source> &sources)
{
    std::vector<declaration> all;
    for (size_t file = 0; file < sources.size(); file++) {
        const source &s = sources[file];
        for (size_t i = 0; i < s.tokens.size(); i++) {
            declaration d;
            d.file = file;
            d.start = i;
            d.bounded = s.is(i, "__launch_bounds__") && s.is(i + 1, "(");
            if (!d.bounded && !s.is(i, "__global__"))
                continue;
            if (!d.bounded && i + 1 == s.tokens.size())
                continue;
            d.found = reader(s, d.bounded ? i : i + 1).read(&d);
            if (d.found || d.bounded)
                all.push_back(d);
        }
    }
    return all;
}

// What is known of the kernels of one name.
struct known {
    std::set<std::string> bounds;
    std::set<std::pair<size_t, size_t>> heads; // file and parenthesis of those with bounds
    bool defined = false;                      // with bounds
    size_t file = NONE;                        // of the last with bounds
};

// __launch_bounds__ whose kernel was not found is an error as it stands.
void edit_one(const source &s, const declaration &d, const std::map<std::string, known> &names,
              std::map<size_t, edit> *edits)
{
    const auto found = names.find(d.name);
    if (!d.found || found == names.end())
        return;
    const known &k = found->second;
    if (d.bounded) {
        replace(s, d.start, "FAJIT_EMU_FOUND_BOUNDS", edits);
        add_parameter(s, d, d.bounds, edits);
        return;
    }
    if (k.heads.count({d.file, d.open}))
        return;
    // Without bounds, but of a name that has them elsewhere: the same kernel, where it can be.
    if (d.defined && k.defined && !d.specialized)
        return;
    if (!d.specialized && k.bounds.size() == 1 && k.file == d.file)
        add_parameter(s, d, *k.bounds.begin(), edits);
    else
        replace(s, d.start, "__launch_bounds__() __global__", edits);
}

// --- kernels with their own names ----------------------------------------------------------------

// Whether each token is of a declaration that is extern "C", outside namespaces, #if and macros.
std::vector<bool> plain_tokens(const source &s)
{
    std::vector<bool> all(s.tokens.size());
    std::vector<bool> braces; // open ones: is it that of an extern "C"
    bool is_c = false;        // so the declaration here says
    int level = 0;            // of #if
    for (size_t i = 0; i < s.tokens.size(); i++) {
        const kind is = s.tokens[i].is;
        level += is == kind::open_if ? 1 : is == kind::close_if ? -1 : 0;
        if (is == kind::open_if || is == kind::other_branch || is == kind::close_if ||
            s.tokens[i].define)
            continue;
        const bool inside = std::find(braces.begin(), braces.end(), false) == braces.end();
        all[i] = level == 0 && inside && (is_c || !braces.empty());
        if (s.is(i, "extern") && s.is(i + 1, "\"C\""))
            is_c = true;
        else if (s.is(i, "{"))
            braces.push_back(is_c && s.is(i - 1, "\"C\""));
        else if (s.is(i, "}") && !braces.empty())
            braces.pop_back();
        if (s.is(i, ";") || s.is(i, "{") || s.is(i, "}"))
            is_c = false;
    }
    return all;
}

} // namespace

std::vector<std::string> plain_kernels(const std::string &text)
{
    std::string copy = text;
    const std::vector<source> sources = {{&copy, tokens_of(copy)}};
    const std::vector<bool> plain = plain_tokens(sources[0]);
    std::vector<std::string> names;
    for (const declaration &d : find_declarations(sources))
        if (d.found && d.defined && plain[d.start])
            names.push_back(d.name);
    return names;
}

void bounds_rewrite(const std::vector<std::string *> &texts)
{
    std::vector<source> sources;
    for (std::string *text : texts)
        sources.push_back({text, tokens_of(*text)});
    const std::vector<declaration> all = find_declarations(sources);
    std::map<std::string, known> names;
    for (const declaration &d : all)
        if (d.bounded && d.found) {
            known &k = names[d.name];
            k.bounds.insert(d.bounds);
            k.heads.insert({d.file, d.open});
            k.defined |= d.defined;
            k.file = d.file;
        }
    std::vector<std::map<size_t, edit>> edits(sources.size());
    for (const declaration &d : all)
        edit_one(sources[d.file], d, names, &edits[d.file]);
    for (size_t i = 0; i < sources.size(); i++)
        make_edits(sources[i].text, edits[i]);
}

} // namespace fajit_emu
