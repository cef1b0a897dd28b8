#include <kiln.h>

#include <algorithm>
#include <exception>
#include <sstream>
#include <string>
#include <vector>

// C++ as you know it; only exceptions must not leave kiln_run.
static std::string sorted_words(const std::string &text)
{
    std::istringstream in(text);
    std::vector<std::string> words;
    for (std::string word; in >> word;) {
        words.push_back(word);
    }
    std::sort(words.begin(), words.end());
    std::string out;
    for (const std::string &word : words) {
        out += word + "\n";
    }
    return out;
}

int kiln_run(kiln_context *ctx, const char *)
try {
    const char *text = kiln_query_get(ctx, "words");
    const std::string answer = sorted_words(text != nullptr ? text : "try ?words=some words to sort");
    kiln_content_type(ctx, "text/plain; charset=utf-8");
    return kiln_write(ctx, answer.data(), answer.size());
} catch (const std::exception &error) {
    kiln_log(ctx, KILN_LOG_ERROR, "%s", error.what());
    return 500;
}
