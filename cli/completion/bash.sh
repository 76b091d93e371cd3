# Completion of Forepack's programs for bash. Written by: forepack completion bash
_forepack() {
    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]}
    local context=${COMP_WORDS[0]##*/} word line value= words=
    if [[ $current == = ]]; then
        current=
    elif [[ $previous == = ]]; then
        previous=${COMP_WORDS[COMP_CWORD - 2]}
    fi
    for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
        [[ $_forepack_words != *$'\n'"$context:$word"$'\n'* ]] || context+=" $word"
    done
    while IFS= read -r line; do
        [[ $line == "$context:"* ]] || continue
        line=${line#"$context:"}
        words+=" ${line%% *}"
        [[ $line != "$previous "* ]] || value=${line#* }
    done <<<"$_forepack_words"
    COMPREPLY=() # none: bash completes the name of a file
    case $value in
    *'|'*) mapfile -t COMPREPLY < <(compgen -W "${value//|/ }" -- "$current") ;;
    '') mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current") ;;
    esac
}
complete -o default -F _forepack forepack forepack-bench forepack-router forepack-sim forepack-speculator forepack-worker
