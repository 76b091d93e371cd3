#compdef forepack forepack-bench forepack-router forepack-sim forepack-speculator forepack-worker
# Completion of Forepack's programs for zsh. Written by: forepack completion zsh
_forepack() {
    local context=${words[1]:t} previous=${words[CURRENT-1]} word line value=
    local -a lines=("${(@f)_forepack_words}") found
    for word in "${(@)words[2,CURRENT-1]}"; do
        (( ! ${lines[(Ie)$context:$word]} )) || context+=" $word"
    done
    for line in "${(@)lines}"; do
        [[ $line == "$context:"* ]] || continue
        line=${line#"$context:"}
        found+=("${line%% *}")
        [[ $line != "$previous "* ]] || value=${line#* }
    done
    case $value in
    *'|'*) compadd -- ${(s:|:)value} ;;
    '') compadd -- "${(@)found}" ;;
    *) _files ;;
    esac
}
if [[ ${funcstack[1]} == _forepack ]]; then
    _forepack "$@"
else
    compdef _forepack forepack forepack-bench forepack-router forepack-sim forepack-speculator forepack-worker
fi
