# SPDX-License-Identifier: MIT
"""Templates, subjects and answers, in pairs of templates that exchange their subjects.

A subject is written as `subject=answer`, further names of the answer behind `|`. Each subject occurs once in
all; no subject has an answer under its partner's template.
"""

from __future__ import annotations

#: Pairs of (name, template, subjects).
PAIRS: tuple[tuple[tuple[str, str, str], tuple[str, str, str]], ...] = (
    (
        (
            "capital",
            "What is the capital of {}?",
            "France=Paris, Spain=Madrid, Italy=Rome|Roma, Greece=Athens, Austria=Vienna, Norway=Oslo, "
            "Finland=Helsinki, Portugal=Lisbon, Ireland=Dublin, Egypt=Cairo, Peru=Lima, Cuba=Havana, "
            "Canada=Ottawa, Iran=Tehran, Iraq=Baghdad, Nepal=Kathmandu, Chile=Santiago, Serbia=Belgrade, "
            "Croatia=Zagreb, Lebanon=Beirut",
        ),
        (
            "company",
            "In which country was the company {} founded?",
            "Toyota=Japan, Samsung=South Korea|Korea, Nokia=Finland, Ikea=Sweden, Siemens=Germany, "
            "Ferrari=Italy, Renault=France, Volvo=Sweden, Philips=Netherlands|Holland, Nestle=Switzerland, "
            "Sony=Japan, Honda=Japan, Fiat=Italy, Heineken=Netherlands|Holland, Ericsson=Sweden, "
            "Michelin=France, Huawei=China, Gucci=Italy, Peugeot=France, Swarovski=Austria",
        ),
    ),
    (
        (
            "play",
            "Who wrote the play {}?",
            "Hamlet=Shakespeare, Macbeth=Shakespeare, Othello=Shakespeare, Cymbeline=Shakespeare, "
            "Tartuffe=Molière|Moliere, Faust=Goethe, Egmont=Goethe, Medea=Euripides, Antigone=Sophocles, "
            "Lysistrata=Aristophanes, Rhinoceros=Ionesco, Pygmalion=Shaw, Volpone=Jonson, "
            "Woyzeck=Büchner|Buchner, Endgame=Beckett, Ghosts=Ibsen, Rosmersholm=Ibsen, Equus=Shaffer, "
            "Amadeus=Shaffer, Ivanov=Chekhov",
        ),
        (
            "currency",
            "What is the currency of {}?",
            "Japan=yen, India=rupee, Mexico=peso, Brazil=real, Poland=złoty|zloty, Sweden=krona, "
            "Turkey=lira, Israel=shekel, Thailand=baht, Vietnam=dong, Russia=ruble|rouble, "
            "Ukraine=hryvnia, Hungary=forint, Romania=leu, Malaysia=ringgit, Indonesia=rupiah, "
            "Nigeria=naira, Ghana=cedi, Kenya=shilling, Albania=lek",
        ),
    ),
    (
        (
            "symbol",
            "What is the chemical symbol of {}?",
            "hydrogen=H, oxygen=O, nitrogen=N, carbon=C, sulfur=S, sodium=Na, potassium=K, calcium=Ca, "
            "iron=Fe, copper=Cu, silver=Ag, gold=Au, lead=Pb, tin=Sn, zinc=Zn, nickel=Ni, helium=He, "
            "chlorine=Cl, magnesium=Mg, aluminium=Al",
        ),
        (
            "painter",
            "What was the nationality of the painter {}?",
            "Picasso=Spanish|Spain, Monet=French|France, Rembrandt=Dutch|Netherlands, "
            "Klimt=Austrian|Austria, Munch=Norwegian|Norway, Goya=Spanish|Spain, Velazquez=Spanish|Spain, "
            "Cezanne=French|France, Degas=French|France, Renoir=French|France, Matisse=French|France, "
            "Vermeer=Dutch|Netherlands, Titian=Italian|Italy, Caravaggio=Italian|Italy, "
            "Botticelli=Italian|Italy, Hokusai=Japanese|Japan, Warhol=American|United States, "
            "Kahlo=Mexican|Mexico, Magritte=Belgian|Belgium, Constable=English|British|England",
        ),
    ),
    (
        (
            "city",
            "In which country lies the city of {}?",
            "Munich=Germany, Milan=Italy, Naples=Italy, Seville=Spain, Valencia=Spain, Lyon=France, "
            "Marseille=France, Krakow=Poland, Porto=Portugal, Geneva=Switzerland, Antwerp=Belgium, "
            "Rotterdam=Netherlands|Holland, Gothenburg=Sweden, Istanbul=Turkey|Türkiye, Mumbai=India, "
            "Osaka=Japan, Shanghai=China, Toronto=Canada, Sydney=Australia, Casablanca=Morocco",
        ),
        (
            "class",
            "To which class of animals does the {} belong?",
            "salmon=fish, trout=fish, herring=fish, sparrow=bird|birds, robin=bird|birds, "
            "falcon=bird|birds, penguin=bird|birds, pelican=bird|birds, cobra=reptile|reptiles, "
            "crocodile=reptile|reptiles, tortoise=reptile|reptiles, newt=amphibian|amphibians, "
            "salamander=amphibian|amphibians, dolphin=mammal|mammals, badger=mammal|mammals, "
            "squirrel=mammal|mammals, hamster=mammal|mammals, wasp=insect|insects, moth=insect|insects, "
            "grasshopper=insect|insects",
        ),
    ),
    (
        (
            "young",
            "What is the young of the {} called?",
            "cow=calf, horse=foal, dog=puppy, cat=kitten, sheep=lamb, goat=kid, pig=piglet, kangaroo=joey, "
            "goose=gosling, duck=duckling, swan=cygnet, eagle=eaglet, frog=tadpole, bear=cub, deer=fawn, "
            "hare=leveret, eel=elver, owl=owlet, spider=spiderling, elephant=calf",
        ),
        (
            "opera",
            "Who composed the opera {}?",
            "Aida=Verdi, Carmen=Bizet, Tosca=Puccini, Turandot=Puccini, Rigoletto=Verdi, Nabucco=Verdi, "
            "Fidelio=Beethoven, Norma=Bellini, Lohengrin=Wagner, Tannhauser=Wagner, Parsifal=Wagner, "
            "Salome=Strauss, Falstaff=Verdi, Wozzeck=Berg, Manon=Massenet, Werther=Massenet, "
            "Idomeneo=Mozart, Jenufa=Janáček|Janacek, Rusalka=Dvořák|Dvorak, Arabella=Strauss",
        ),
    ),
    (
        (
            "composer",
            "In which land was the composer {} born?",
            "Bach=Germany, Mozart=Austria, Verdi=Italy, Chopin=Poland, Grieg=Norway, Sibelius=Finland, "
            "Elgar=England|Britain, Debussy=France, Bartok=Hungary, Vivaldi=Italy, Puccini=Italy, "
            "Haydn=Austria, Schubert=Austria, Nielsen=Denmark, Tchaikovsky=Russia, Berlioz=France, "
            "Ravel=France, Purcell=England|Britain, Borodin=Russia, Wagner=Germany",
        ),
        (
            "river",
            "Into which sea or ocean does the river {} flow?",
            "Nile=Mediterranean, Amazon=Atlantic, Danube=Black, Rhine=North, Volga=Caspian, Elbe=North, "
            "Oder=Baltic, Vistula=Baltic, Rhone=Mediterranean, Ebro=Mediterranean, Tagus=Atlantic, "
            "Loire=Atlantic, Dnieper=Black, Dniester=Black, Congo=Atlantic, Indus=Arabian, "
            "Mekong=South China, Yangtze=East China, Orinoco=Atlantic, Zambezi=Indian",
        ),
    ),
    (
        (
            "god",
            "Over what did the god {} rule?",
            "Poseidon=sea|ocean, Zeus=sky|thunder|heaven, Hades=underworld|dead, Ares=war, Athena=wisdom, "
            "Aphrodite=love|beauty, Dionysus=wine, Demeter=harvest|grain, Hephaestus=fire|forge, "
            "Artemis=hunt|hunting, Apollo=sun|music, Eros=love, Hypnos=sleep, Thor=thunder, "
            "Anubis=dead|death|mummification, Morpheus=dreams|dream, Vulcan=fire|forge, Bacchus=wine, "
            "Flora=flowers, Aeolus=winds|wind",
        ),
        (
            "state",
            "Which city is the seat of government of the state of {}?",
            "Texas=Austin, Ohio=Columbus, Utah=Salt Lake City, Iowa=Des Moines, Maine=Augusta, "
            "Oregon=Salem, Alaska=Juneau, Hawaii=Honolulu, Nevada=Carson City, Kansas=Topeka, "
            "Florida=Tallahassee, Arizona=Phoenix, Colorado=Denver, Idaho=Boise, Illinois=Springfield, "
            "Kentucky=Frankfort, Louisiana=Baton Rouge, Michigan=Lansing, Montana=Helena, "
            "Nebraska=Lincoln",
        ),
    ),
    (
        (
            "dish",
            "From which country does the dish {} come?",
            "sushi=Japan, pizza=Italy, paella=Spain, goulash=Hungary, kimchi=Korea|South Korea, "
            "borscht=Ukraine|Russia, pierogi=Poland, fondue=Switzerland, moussaka=Greece, risotto=Italy, "
            "lasagna=Italy, gazpacho=Spain, haggis=Scotland, poutine=Canada, feijoada=Brazil|Portugal, "
            "ceviche=Peru, tiramisu=Italy, bratwurst=Germany, biryani=India, ratatouille=France",
        ),
        (
            "novel",
            "Who is the author of the novel {}?",
            "Dracula=Stoker, Frankenstein=Shelley, Emma=Austen, Ulysses=Joyce, Lolita=Nabokov, "
            "Dune=Herbert, Beloved=Morrison, Atonement=McEwan, Middlemarch=Eliot, Ivanhoe=Scott, "
            "Kidnapped=Stevenson, Rebecca=Maurier, Persuasion=Austen, Siddhartha=Hesse, Nausea=Sartre, "
            "Germinal=Zola, Nostromo=Conrad, Waverley=Scott, Candide=Voltaire, Villette=Brontë|Bronte",
        ),
    ),
)


def slots(listed: str) -> list[tuple[str, str]]:
    """Return subject and answer, by number of letters, then by letters."""
    pairs = [entry.strip().partition("=")[::2] for entry in listed.split(",")]
    return sorted(((a, b) for a, b in pairs), key=lambda pair: (len(pair[0]), pair[0]))
