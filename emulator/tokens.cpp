#include "tokens.h"

#include <cctype>
#include <cstring>

namespace fajit_emu {

namespace {

class scanner {
  public:
    explicit scanner(const std::string &text) : text_(text) {}

    std::vector<token> tokens()
    {
        bool line_begins = true;
        while (skip_space(), at_ < text_.size()) {
            if (text_[at_] == '\n') {
                define_ = 0;
                line_begins = true;
                at_++;
            } else if (text_[at_] == '#' && line_begins) {
                directive();
                line_begins = false;
            } else {
                one();
                line_begins = false;
            }
        }
        return std::move(found_);
    }

  private:
    const std::string &text_;
    size_t at_ = 0;
    unsigned define_ = 0, defines_ = 0;
    std::vector<token> found_;

    bool here(const char *what) const
    {
        return text_.compare(at_, strlen(what), what) == 0;
    }

    static bool in_word(char c)
    {
        return isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '$';
    }

    // Of a line that goes on after a backslash.
    bool splice()
    {
        if (here("\\\n"))
            at_ += 2;
        else if (here("\\\r\n"))
            at_ += 3;
        else
            return false;
        return true;
    }

    void skip_space()
    {
        while (at_ < text_.size()) {
            if (here("//"))
                skip_line();
            else if (here("/*")) {
                const size_t end = text_.find("*/", at_ + 2);
                at_ = end == std::string::npos ? text_.size() : end + 2;
            } else if (text_[at_] != '\n' && isspace(static_cast<unsigned char>(text_[at_])))
                at_++;
            else if (!splice())
                return;
        }
    }

    // Up to the end of the line that splices may make longer.
    void skip_line()
    {
        while (at_ < text_.size() && text_[at_] != '\n')
            if (!splice())
                at_++;
    }

    std::string word()
    {
        const size_t begin = at_;
        while (at_ < text_.size() && in_word(text_[at_]))
            at_++;
        return text_.substr(begin, at_ - begin);
    }

    void add(kind is, size_t begin)
    {
        found_.push_back({is, begin, at_, define_});
    }

    void directive()
    {
        const size_t begin = at_++;
        skip_space();
        const std::string name = word();
        if (name == "define") {
            define_ = ++defines_;
            return;
        }
        skip_directive();
        if (name == "if" || name == "ifdef" || name == "ifndef")
            add(kind::open_if, begin);
        else if (name == "else" || name == "elif" || name == "elifdef" || name == "elifndef")
            add(kind::other_branch, begin);
        else if (name == "endif")
            add(kind::close_if, begin);
    }

    // A comment in it may go over its line.
    void skip_directive()
    {
        while (at_ < text_.size() && text_[at_] != '\n')
            if (here("/*") || here("//"))
                skip_space();
            else if (!splice())
                at_++;
    }

    void quoted()
    {
        const char quote = text_[at_++];
        while (at_ < text_.size() && text_[at_] != quote && text_[at_] != '\n')
            at_ += text_[at_] == '\\' && at_ + 1 < text_.size() ? 2 : 1;
        if (at_ < text_.size() && text_[at_] == quote)
            at_++;
    }

    void raw_string()
    {
        const size_t open = text_.find('(', at_);
        if (open == std::string::npos) {
            at_ = text_.size();
            return;
        }
        const std::string close = ")" + text_.substr(at_ + 1, open - at_ - 1) + "\"";
        const size_t end = text_.find(close, open);
        at_ = end == std::string::npos ? text_.size() : end + close.size();
    }

    void number()
    {
        while (at_ < text_.size() &&
               (in_word(text_[at_]) || text_[at_] == '.' ||
                (text_[at_] == '\'' && at_ + 1 < text_.size() && in_word(text_[at_ + 1])) ||
                (strchr("+-", text_[at_]) && strchr("eEpP", text_[at_ - 1]))))
            at_++;
    }

    void one()
    {
        const size_t begin = at_;
        const char c = text_[at_];
        if (isdigit(static_cast<unsigned char>(c))) {
            number();
            add(kind::literal, begin);
        } else if (in_word(c)) {
            const std::string name = word();
            const char next = at_ < text_.size() ? text_[at_] : '\0';
            if (next == '"' && name.back() == 'R' && name.size() <= 3) {
                raw_string();
                add(kind::literal, begin);
            } else {
                add(kind::word, begin);
            }
        } else if (c == '"' || c == '\'') {
            quoted();
            add(kind::literal, begin);
        } else {
            at_ += here("::") || here("->") ? 2 : 1;
            add(kind::mark, begin);
        }
    }
};

} // namespace

std::vector<token> tokens_of(const std::string &text)
{
    return scanner(text).tokens();
}

} // namespace fajit_emu
