# Completion of Forepack's programs for fish. Written by: forepack completion fish
function _forepack
    set -l words (commandline -opc)
    set -l lines (string split \n -- $_forepack_words)
    set -l context (basename $words[1])
    set -l value
    set -l found
    for word in $words[2..-1]
        contains -- "$context:$word" $lines; and set context "$context $word"
    end
    for line in $lines
        set -l row (string split -m 1 ':' -- $line)
        test "$row[1]" = "$context"; or continue
        set -l option (string split -m 1 ' ' -- $row[2])
        set -a found $option[1]
        test "$option[1]" = "$words[-1]"; and set value $option[2]
    end
    if string match -q '*|*' -- "$value"
        string split '|' -- $value
    else if test -n "$value"
        __fish_complete_path (commandline -ct)
    else
        printf '%s\n' $found
    end
end
for program in forepack forepack-bench forepack-router forepack-sim forepack-speculator forepack-worker
    complete -c $program -f -a '(_forepack)'
end
