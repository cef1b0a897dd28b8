# kiln.h to kiln.h(3), and kiln_ws.h likewise. In: the header. A comment that begins a line describes the declarations
# up to the next blank line or comment; "==== title" begins a section, "---- text" a part of one.
# The first comment is the introduction: CAPITALS alone are headings, deeper lines are code.

function escape(text)
{
    gsub(/\\/, "\\e", text)
    gsub(/-/, "\\-", text)
    if (text ~ /^[.']/) {
        text = "\\&" text
    }
    return text
}

# One line of a comment without its frame.
function bare(line)
{
    sub(/^\/\* ?/, "", line)
    sub(/^ \* ?/, "", line)
    sub(/^ \*$/, "", line)
    sub(/ *\*\/.*$/, "", line)
    return line
}

function code_on()
{
    if (!in_code) {
        print ".PP\n.nf\n.RS 4"
        in_code = 1
    }
}

function code_off()
{
    if (in_code) {
        print ".RE\n.fi\n.PP"
        in_code = 0
    }
}

function introduce(line)
{
    if (line ~ /^    /) {
        code_on()
        print escape(substr(line, 5))
        return
    }
    code_off()
    if (line ~ /^[A-Z][A-Z ]+$/) {
        print ".SH " line
    } else if (line ~ /^- /) {
        print ".IP \\(bu 2\n" escape(substr(line, 3))
    } else if (line == "") {
        print ".PP"
    } else {
        sub(/^  /, "", line)
        print escape(line)
    }
}

# Declarations in bold, then what was said about them.
function flush_group(    i)
{
    if (code_count > 0) {
        print ".PP\n.nf"
        for (i = 1; i <= code_count; i++) {
            print "\\fB" escape(code[i]) "\\fR"
        }
        print ".fi"
        if (text != "") {
            print ".RS 4\n" text ".RE"
        }
    } else if (text != "") {
        print ".PP\n" text
    }
    code_count = 0
    text = ""
}

function end_comment()
{
    started = 0
    intro_done = 1
}

function take_comment_line(line)
{
    if (!intro_done) {
        introduce(line)
        return
    }
    if (line ~ /^==== /) {
        sub(/^==== /, "", line)
        sub(/ *=+$/, "", line)
        print ".SH " toupper(escape(line))
    } else if (line ~ /^---- /) {
        sub(/^---- /, "", line)
        text = text escape(line) "\n"
    } else if (line != "") {
        text = text escape(line) "\n"
    }
}

function take_code(line)
{
    gsub(/KILN_API /, "", line)
    gsub(/ KILN_API/, "", line)
    gsub(/ KILN_PRINTF\([0-9], [0-9]\)/, "", line)
    gsub(/ __attribute__\(\(weak\)\)/, "", line)
    code[++code_count] = line
}

# Variables: header, about (one line), build (the compiler's command), and `version`.
BEGIN {
    print ".\\\" Made from " header " by header_to_man.awk."
    print ".TH " toupper(header) " 3 \"\" \"kiln " version "\" \"Kiln SDK\""
    print ".SH NAME\n" escape(header) " \\- " about
    print ".SH SYNOPSIS\n.nf\n.B #include <" header ">\n.PP\n.B \"" escape(build) "\"\n.fi"
    print ".SH DESCRIPTION"
}

comment {
    take_comment_line(bare($0))
    if ($0 ~ /\*\//) {
        comment = 0
        end_comment()
    }
    next
}

/^\/\*/ {
    flush_group()
    take_comment_line(bare($0))
    if ($0 ~ /\*\//) {
        end_comment()
    } else {
        comment = 1
    }
    next
}

# For compilers, not for readers.
/^#if.*(__TINYC__|__cplusplus|__GNUC__)/ { skipping = 1 }
skipping {
    if ($0 ~ /^#endif/) {
        skipping = 0
        text = ""
    }
    next
}
/^#define KILN_[A-Z_]+ / { take_code($0); next }
/^#/ { next }
/^[ \t]*$/ { flush_group(); next }
{ take_code($0) }

END {
    flush_group()
    print ".SH SEE ALSO\n.BR kiln (1),\n.BR kiln.json (5)"
}
